"""What an agent offers and reports about itself, in one bounded shape: settings, commands, title, ways to log in.

Drivers produce this shape and the control plane checks it again, because everything in it comes from an agent. Ids and
values go back to the agent, so one that is too long or not printable is dropped, never cut. What only people read is
cut and loses its control characters.

A setting is ``{"id", "name", "description", "category", "type": "select" | "boolean", "value", "choices"}``; ``value``
is None if the agent does not report it. A choice is ``{"value", "name", "description"}``, a command ``{"name",
"description", "hint"}``.

A way to log in, published at ``initialize``, is ``{"id", "name", "description", "type", "args", "env", "variables",
"link"}``. By ``type``: *agent* logs in on its own after ``authenticate``; *terminal* runs the agent's own command with
``args`` added, and a person completes it; *env_var* requires ``variables`` in the agent's environment, described at
``link``. Words that go into a command are dropped with their method if they are malformed. A method that sets
variables is dropped, too: a variable can choose what a program loads or which proxy it trusts, and no list of the
harmful ones is complete. ``env`` is therefore always empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeGuard

MAX_SETTINGS: Final = 32
MAX_CHOICES: Final = 600
"""Choices of all settings together: agents that list a provider's models have some hundreds."""
MAX_COMMANDS: Final = 200
ID_LIMIT: Final = 200
"""Characters of an id or a value."""
NAME_LIMIT: Final = 120
DESCRIPTION_LIMIT: Final = 300
TITLE_LIMIT: Final = 200
REASON_LIMIT: Final = 500
"""Characters of the reason with which an agent refuses a setting."""

Setting = dict[str, Any]
SettingValue = str | bool


def clean_text(value: Any, limit: int) -> str:
    """Return text for people: printable, on one line, at most ``limit`` characters; empty for other values."""
    if not isinstance(value, str):
        return ""
    words = "".join(char if char.isprintable() else " " for char in value[: 4 * limit]).split()
    return " ".join(words)[:limit]


def is_identifier(value: Any) -> TypeGuard[str]:
    """Whether a value can be the id of a setting or of a choice."""
    return isinstance(value, str) and 0 < len(value) <= ID_LIMIT and value.isprintable()


def parse_settings(value: Any) -> list[Setting]:
    """Return the settings of a list, without those that are malformed, repeated or too many."""
    found: dict[str, Setting] = {}
    room = MAX_CHOICES
    for each in _objects(value):
        if len(found) == MAX_SETTINGS:
            break
        if not is_identifier(each.get("id")) or each["id"] in found:
            continue
        setting = _parse_setting(each, room)
        if setting is not None:
            room -= len(setting["choices"])
            found[setting["id"]] = setting
    return list(found.values())


def _parse_setting(each: Mapping[str, Any], room: int) -> Setting | None:
    value, choices = each.get("value"), []
    if each.get("type") == "boolean":
        value = value if isinstance(value, bool) else None
    elif each.get("type") == "select":
        value = value if is_identifier(value) else None
        choices = list(_parse_choices(each.get("choices"), room))
        if not choices:
            return None
    else:
        return None
    return {
        "id": each["id"],
        "name": clean_text(each.get("name"), NAME_LIMIT) or each["id"][:NAME_LIMIT],
        "description": clean_text(each.get("description"), DESCRIPTION_LIMIT),
        "category": clean_text(each.get("category"), NAME_LIMIT),
        "type": each["type"],
        "value": value,
        "choices": choices,
    }


def _parse_choices(value: Any, room: int) -> Iterator[dict[str, str]]:
    seen: set[str] = set()
    for each in _objects(value):
        choice = each.get("value")
        if len(seen) >= room:
            return
        if not is_identifier(choice) or choice in seen:
            continue
        seen.add(choice)
        yield {
            "value": choice,
            "name": clean_text(each.get("name"), NAME_LIMIT) or choice[:NAME_LIMIT],
            "description": clean_text(each.get("description"), DESCRIPTION_LIMIT),
        }


def parse_commands(value: Any) -> list[dict[str, str]]:
    """Return the commands of a list, without those that are malformed, repeated or too many."""
    found: dict[str, dict[str, str]] = {}
    for each in _objects(value):
        name = each.get("name")
        if len(found) == MAX_COMMANDS:
            break
        if is_identifier(name) and len(name) <= NAME_LIMIT and name not in found:
            found[name] = {
                "name": name,
                "description": clean_text(each.get("description"), DESCRIPTION_LIMIT),
                "hint": clean_text(each.get("hint"), NAME_LIMIT),
            }
    return list(found.values())


def find_setting(settings: Sequence[Setting], setting_id: str) -> Setting | None:
    """Return the setting with this id; None if there is none."""
    return next((each for each in settings if each["id"] == setting_id), None)


def accepts_value(setting: Setting, value: Any) -> bool:
    """Whether a setting can have this value."""
    if setting["type"] == "boolean":
        return isinstance(value, bool)
    return isinstance(value, str) and any(choice["value"] == value for choice in setting["choices"])


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    return (each for each in (value if isinstance(value, list) else ()) if isinstance(each, dict))


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
    for each in value if isinstance(value, list) else ():
        if isinstance(each, dict) and len(found) < MAX_METHODS:
            method = _parse_method(each)
        else:
            method = None
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
    link = each.get("link")
    return {
        "id": each["id"],
        "name": clean_text(each.get("name"), NAME_LIMIT) or each["id"][:NAME_LIMIT],
        "description": clean_text(each.get("description"), DESCRIPTION_LIMIT),
        "type": kind,
        "args": args if kind == TERMINAL else [],
        "env": {},
        "variables": variables if kind == ENV_VAR else [],
        "link": link if kind == ENV_VAR and isinstance(link, str) and _HTTPS.fullmatch(link) else "",
    }


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
    names = [one.get("name") if isinstance(one, dict) else one for one in (given if isinstance(given, list) else ())]
    return [name for name in names[:MAX_WORDS] if isinstance(name, str) and _VARIABLE.fullmatch(name)]
