"""Convert events of the log to lines of the portable record and back, without loss.

A line is ``{"seq", "ts", "kind", ...payload}``. The kind is the event's name without ``session.``; an added message has
its role in the kind (``message.user``) and its text under ``content``. Payload fields whose names the flat form uses
itself lie under ``more``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

from sessions_app.kernel.rules.log_event import MESSAGE_ADDED, ROLES, LogEvent

PREFIX: Final = "session."
HIGHEST_SEQ: Final = 2**53
"""Larger numbers cannot be a line of a log: JSON readers would lose precision."""

_OTHER_ROLES: Final = {"assistant": "agent", "system": "status"}
"""Role names of other producers, and ours for them."""
_OTHER_NAMES: Final = {"session.status_derived": "status.derived"}
_OTHER_KINDS: Final = {kind: name for name, kind in _OTHER_NAMES.items()}
_FRAME: Final = frozenset({"seq", "ts", "kind", "name", "once", "more"})
_MESSAGE_FRAME: Final = _FRAME | {"content", "role", "text"}
_KIND: Final = re.compile(r"[a-z][a-z_]*(\.[a-z][a-z_]*)*")
_LONGEST_NAME: Final = 64
_LONGEST_ONCE: Final = 128


class BadLine(Exception):
    """A line that cannot be read as an event; the message says why in a few words."""


def event_to_line(event: LogEvent) -> dict[str, Any]:
    """Return the event as a line."""
    line: dict[str, Any] = {"seq": event.seq, "ts": format_time(event.at), "kind": _kind_of(event)}
    frame: frozenset[str] = _FRAME
    implied: tuple[str, ...] = ()
    if event.once is not None:
        line["once"] = event.once
    if _name_of(line["kind"]) != event.name:
        # The kind alone would be read back as another name.
        line["name"] = event.name
    elif _is_message(line["kind"]):
        frame = _MESSAGE_FRAME
        line["content"] = event.payload["text"]
        implied = ("role", "text")  # in the line as kind and content
    more = {}
    for key, value in event.payload.items():
        if key not in frame:
            line[key] = value
        elif key not in implied:
            more[key] = value
    if more:
        line["more"] = more
    return line


def line_to_event(line: Any) -> LogEvent:
    """Return the event of a line, also of other producers' lines; raises BadLine for anything else."""
    if not isinstance(line, dict):
        raise BadLine("not an object")
    seq = line.get("seq")
    if not isinstance(seq, int) or isinstance(seq, bool) or not 0 < seq < HIGHEST_SEQ:
        raise BadLine("no seq")
    kind = line.get("kind")
    if not isinstance(kind, str) or not (_KIND.fullmatch(kind) or "name" in line):
        raise BadLine("no kind")
    name = line.get("name", _name_of(kind))
    more = line.get("more", {})
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not isinstance(more, dict):
        raise BadLine("no kind")
    is_message = _is_message(kind) and "name" not in line
    frame = _MESSAGE_FRAME if is_message else _FRAME
    payload = {key: value for key, value in line.items() if key not in frame} | more
    if is_message:
        role = kind.partition(".")[2]
        payload |= {"role": _OTHER_ROLES.get(role, role), "text": _text_of(line.get("content", ""))}
    once = line.get("once")
    if not isinstance(once, str) or not 0 < len(once) <= _LONGEST_ONCE:
        once = None
    return LogEvent(seq, parse_time(line.get("ts")), name, payload, once)


def format_time(at: datetime) -> str:
    """Format a time as ISO 8601 in UTC."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def parse_time(text: Any) -> datetime:
    """Parse an ISO 8601 time (UTC if it names no zone); raises BadLine for anything else."""
    try:
        at = datetime.fromisoformat(text)
        if not at.tzinfo:
            at = at.replace(tzinfo=UTC)
        return at.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        raise BadLine("no time") from None


def _kind_of(event: LogEvent) -> str:
    role, text = event.payload.get("role"), event.payload.get("text")
    if event.name == MESSAGE_ADDED and role in ROLES and isinstance(text, str):
        return f"message.{role}"
    return _OTHER_NAMES.get(event.name, event.name.removeprefix(PREFIX))


def _name_of(kind: str) -> str:
    if kind in _OTHER_KINDS:
        return _OTHER_KINDS[kind]
    if _is_message(kind):
        return MESSAGE_ADDED
    return PREFIX + kind


def _is_message(kind: str) -> bool:
    first, _, role = kind.partition(".")
    return first == "message" and (role in ROLES or role in _OTHER_ROLES)


def _text_of(content: Any) -> str:
    """Return text content, or the joined text blocks of another producer's list."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(block, dict) for block in content):
        return "".join(block["text"] for block in content if isinstance(block.get("text"), str))
    raise BadLine("no text")
