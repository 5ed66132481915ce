"""Tool calls: an agent's id for one is unique within a turn, and among the calls of one agent of that turn."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sessions_app.redaction.visible_text import is_blank

KEY_LIMIT: Final = 200
"""Characters of ``Message.key``."""
REVIEW_LIMIT: Final = 1_000_000
"""Maximum number of characters of each part of a permission request that are shown beside the answers to it.

Of a longer part not all is shown, so no answer that allows it is offered with it.
"""


def key_of_tool(fields: Mapping[str, Any]) -> str:
    """Return the key of the tool call that a journal line, a message or a permission request names.

    It is unique among the calls of a turn: a sub-agent numbers its calls on its own, and long ids keep their
    difference, also behind the limit of the column.
    """
    tool_call_id, sub_agent = str(fields.get("tool_call_id") or ""), str(fields.get("sub_agent") or "")
    name = f"{sub_agent}\x1f{tool_call_id}" if sub_agent else tool_call_id
    if len(name) <= KEY_LIMIT:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[: KEY_LIMIT - len(digest) - 1]}~{digest}"


UNKNOWN_ACTION: Final = "The agent does not say what it wants to do."
_UNTOLD_FIELDS: Final = frozenset({"type", "mimeType", "terminalId", "_meta"})
"""Fields of a tool's content that say nothing of what it does."""
COMMAND_FIELDS: Final = ("command", "cmd")
"""Where the input of a tool call may have a command."""
_SHELLS: Final = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/bin/zsh", "/usr/bin/bash", "/usr/bin/zsh"})
_SCRIPT_OPTIONS: Final = frozenset({"-c", "-lc"})


def is_unknown_action(tool_call: Mapping[str, Any]) -> bool:
    """Whether an agent says nothing about a tool call: neither a title, a kind, an input, content nor files.

    Nobody can consent to it. The kind *other* says nothing either; agents that report none are given it.
    """
    if tool_call.get("tool_kind") != "other" and _says_something(tool_call.get("tool_kind")):
        return False
    return not _says_something([tool_call.get(name) for name in ("title", "raw_input", "content", "locations")])


def _says_something(value: Any) -> bool:
    """Whether a value contains a text that can be read, a number or a switch, at any depth."""
    remaining = [value]  # not recursive: agents decide how deep it is
    while remaining:
        part = remaining.pop()
        if isinstance(part, Mapping):
            remaining += [inner for name, inner in part.items() if name not in _UNTOLD_FIELDS]
        elif isinstance(part, list):
            remaining += part
        elif isinstance(part, str):
            if not is_blank(part):
                return True
        elif part is not None:
            return True
    return False


def is_rejection(option: Mapping[str, Any]) -> bool:
    """Whether an option of a permission request rejects it, according to its kind."""
    return str(option.get("kind", "")).startswith("reject")


def offered_options(tool_call: Mapping[str, Any], options: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the options of a permission request that people may choose.

    What the agent does not name can be allowed once, but not from now on.
    """
    if not is_unknown_action(tool_call):
        return list(options)
    return [option for option in options if not _allows_lastingly(option)]


def _allows_lastingly(option: Mapping[str, Any]) -> bool:
    kind = str(option.get("kind", ""))
    return kind.startswith("allow") and kind != "allow_once"


def command_of(payload: Mapping[str, Any]) -> str:
    """Return the command that a tool call runs, as its input has it; empty if its input has none.

    Of a shell that is given a script, the script is the command. Nothing else is left out of it.
    """
    raw_input = payload.get("raw_input")
    if isinstance(raw_input, str) and payload.get("tool_kind") == "execute":
        return raw_input
    if not isinstance(raw_input, dict):
        return ""
    given = next((raw_input[name] for name in COMMAND_FIELDS if raw_input.get(name)), "")
    if isinstance(given, str):
        return given
    if isinstance(given, list) and all(isinstance(word, str) for word in given):
        return _script_of(given) or shlex.join(given)
    return ""


def _script_of(words: Sequence[str]) -> str:
    if len(words) == 3 and words[0] in _SHELLS and words[1] in _SCRIPT_OPTIONS:
        return words[2]
    return ""
