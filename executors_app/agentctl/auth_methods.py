"""The ways to log in that an agent publishes at ``initialize``, in one bounded shape.

Drivers produce this shape and the control plane checks it again, because all of it comes from an agent. Words that go
back to the agent or into a command are dropped with their method if they are malformed, never cut.

A method is ``{"id", "name", "description", "type", "args", "env", "variables", "link"}``. By ``type``: *agent* logs in
by itself when it gets ``authenticate``; *terminal* runs the agent's own command with ``args`` and ``env`` added, and a
person completes it; *env_var* wants ``variables`` in the agent's environment, described at ``link``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from executors_app.agentctl.agent_settings import DESCRIPTION_LIMIT, NAME_LIMIT, clean_text, is_identifier

AGENT: Final = "agent"
TERMINAL: Final = "terminal"
ENV_VAR: Final = "env_var"
MAX_METHODS: Final = 16
MAX_WORDS: Final = 32
"""Arguments, or variables, of one method."""
WORD_LIMIT: Final = 500
"""Characters of an argument or of a variable's value."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_HTTPS: Final = re.compile(r"https://[^\s<>\"']{1,500}")
_DECIDES_WHAT_RUNS: Final = re.compile(
    r"PATH|HOME|SHELL|IFS|ENV|BASH_ENV|PS\d|PROMPT_COMMAND|SHELLOPTS|BASHOPTS|CDPATH|TMPDIR|USER|LOGNAME"
    r"|(?:LD|DYLD|PYTHON|NODE|NPM|PERL|RUBY|JAVA|JDK|GIT|SSH|SUDO|XDG|KANDEV|BASH_FUNC)_?.*"
)
"""Variables that choose which program runs, where its files are or what it loads: a login has no need to set them."""


def parse_auth_methods(value: Any) -> list[dict[str, Any]]:
    """Return the methods of a list, without those that are malformed, repeated, unknown or too many."""
    found: dict[str, dict[str, Any]] = {}
    for each in value if isinstance(value, list) else ():
        method = _parse_method(each) if isinstance(each, dict) and len(found) < MAX_METHODS else None
        if method is not None:
            found.setdefault(method["id"], method)
    return list(found.values())


def _parse_method(each: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = each.get("type") or AGENT
    args, env, variables = _parse_words(each.get("args")), _parse_env(each.get("env")), _parse_variables(each)
    if not is_identifier(each.get("id")) or kind not in (AGENT, TERMINAL, ENV_VAR):
        return None
    if args is None or env is None or (kind == ENV_VAR and not variables):
        return None
    link = each.get("link")
    return {
        "id": each["id"],
        "name": clean_text(each.get("name"), NAME_LIMIT) or each["id"][:NAME_LIMIT],
        "description": clean_text(each.get("description"), DESCRIPTION_LIMIT),
        "type": kind,
        "args": args if kind == TERMINAL else [],
        "env": env if kind == TERMINAL else {},
        "variables": variables if kind == ENV_VAR else [],
        "link": link if kind == ENV_VAR and isinstance(link, str) and _HTTPS.fullmatch(link) else "",
    }


def _parse_words(value: Any) -> list[str] | None:
    if value is None:
        return []
    fits = isinstance(value, list) and len(value) <= MAX_WORDS and all(map(_is_word, value))
    return list(value) if fits else None


def _is_word(value: Any) -> bool:
    """Whether a value can be part of a command that is shown and typed: no control or invisible characters."""
    return isinstance(value, str) and len(value) <= WORD_LIMIT and value.isprintable()


def _parse_env(value: Any) -> dict[str, str] | None:
    if value is None:
        return {}
    fits = isinstance(value, dict) and len(value) <= MAX_WORDS and all(map(_is_word, value.values()))
    if not fits or not all(_VARIABLE.fullmatch(name) and not _DECIDES_WHAT_RUNS.fullmatch(name) for name in value):
        return None
    return dict(value)


def _parse_variables(each: Mapping[str, Any]) -> list[str]:
    """Return the names of the variables, as ACP writes them (``vars``) or as they are stored here."""
    given = each.get("variables", each.get("vars"))
    names = [one.get("name") if isinstance(one, dict) else one for one in (given if isinstance(given, list) else ())]
    return [name for name in names[:MAX_WORDS] if isinstance(name, str) and _VARIABLE.fullmatch(name)]
