"""The ways to log in that an agent publishes at ``initialize``, in one bounded shape.

Drivers produce this shape and the control plane checks it again, as in ``agent_settings``.

A way to log in is ``{"id", "name", "description", "type", "args", "env", "variables", "link"}``. By ``type``: *agent*
logs in on its own after ``authenticate``; *terminal* runs the agent's own command with ``args`` added, and a person
completes it; *env_var* requires ``variables`` in the agent's environment, described at ``link``. Words that go into a
command are dropped with their method if they are malformed. A method that sets variables is dropped, too: a variable
can choose what a program loads or which proxy it trusts, and no list of the harmful ones is complete. ``env`` is
therefore always empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from executors_app.wire.agent_settings import DESCRIPTION_LIMIT, NAME_LIMIT, clean_text, is_identifier

AGENT: Final = "agent"
TERMINAL: Final = "terminal"
ENV_VAR: Final = "env_var"
MAX_METHODS: Final = 16
MAX_WORDS: Final = 32
"""Arguments, or variables, of one method."""
WORD_LIMIT: Final = 500
"""Characters of an argument or of a variable's value."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_HTTPS: Final = re.compile(r"https://[A-Za-z0-9.-]{1,253}(?::\d{1,5})?(?:/[!-~]{0,500})?")
"""An address that reads as what it is: ASCII, and no user name that looks like a host."""


def parse_auth_methods(value: Any) -> list[dict[str, Any]]:
    """Return the methods of a list, without those that are malformed, repeated, unknown or too many."""
    found: dict[str, dict[str, Any]] = {}
    if not isinstance(value, list):
        return []
    for each in value:
        if not isinstance(each, dict) or len(found) >= MAX_METHODS:
            continue
        method = _parse_method(each)
        if method is not None:
            found.setdefault(method["id"], method)
    return list(found.values())


def _parse_method(each: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = each.get("type") or AGENT
    args, variables = _parse_words(each.get("args")), _parse_variables(each)
    if not is_identifier(each.get("id")) or kind not in (AGENT, TERMINAL, ENV_VAR):
        return None
    if args is None or each.get("env") or (kind == ENV_VAR and not variables):
        return None
    method = {
        "id": each["id"],
        "name": clean_text(each.get("name"), NAME_LIMIT) or each["id"][:NAME_LIMIT],
        "description": clean_text(each.get("description"), DESCRIPTION_LIMIT),
        "type": kind,
        "args": [],
        "env": {},
        "variables": [],
        "link": "",
    }
    if kind == TERMINAL:
        method["args"] = args
    elif kind == ENV_VAR:
        method["variables"] = variables
        method["link"] = _parse_link(each.get("link"))
    return method


def _parse_link(value: Any) -> str:
    if isinstance(value, str) and _HTTPS.fullmatch(value):
        return value
    return ""


def _parse_words(value: Any) -> list[str] | None:
    if value is None:
        return []
    fits = isinstance(value, list) and len(value) <= MAX_WORDS and all(map(_is_word, value))
    if fits:
        return list(value)
    return None


def _is_word(value: Any) -> bool:
    """Whether a value can be part of a command that is shown and typed.

    Only visible ASCII: what is read is then what is typed, without look-alikes, joiners or reversed text.
    """
    return isinstance(value, str) and len(value) <= WORD_LIMIT and value.isascii() and value.isprintable()


def _parse_variables(each: Mapping[str, Any]) -> list[str]:
    """Return the names of the variables, as ACP writes them (``vars``) or as they are stored here."""
    given = each.get("variables", each.get("vars"))
    if not isinstance(given, list):
        return []
    names = []
    for variable in given[:MAX_WORDS]:
        name = variable
        if isinstance(variable, dict):
            name = variable.get("name")
        if isinstance(name, str) and _VARIABLE.fullmatch(name):
            names.append(name)
    return names
