"""What an agent offers and reports about itself, in one bounded shape: settings, commands and its title.

Drivers produce this shape and the control plane checks it again, because everything in it comes from an agent. Ids and
values go back to the agent, so one that is too long or not printable is dropped, never cut. What only people read is
cut and loses its control characters.

A setting is ``{"id", "name", "description", "category", "type": "select" | "boolean", "value", "choices"}``; ``value``
is None if the agent does not report it. A choice is ``{"value", "name", "description"}``, a command ``{"name",
"description", "hint"}``.
"""

from __future__ import annotations

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
        is_known = isinstance(value, bool)
    elif each.get("type") == "select":
        is_known = is_identifier(value)
        choices = list(_parse_choices(each.get("choices"), room))
        if not choices:
            return None
    else:
        return None
    if not is_known:
        value = None
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
    if isinstance(value, list):
        for each in value:
            if isinstance(each, dict):
                yield each
