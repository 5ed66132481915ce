"""The events of a session's log, each declared once in the module of its topic.

To add an event, declare a subclass of ``Event`` in the module of its topic and pass an instance to
``SessionTransaction.record_event``. ``make docs`` then adds it to the documents and the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sessions_app.agents import events as agents
from sessions_app.background import events as background
from sessions_app.finish import events as finish
from sessions_app.kernel.events import session
from sessions_app.kernel.events.base import EVENT_CLASSES, Event, Inbox, unknown_event_label
from sessions_app.kernel.rules.log_event import LogEvent, stable_id
from sessions_app.kernel.rules.rebuild import SessionRebuild
from sessions_app.permissions import events as permissions
from sessions_app.placement import events as placement
from sessions_app.prompts import events as prompts
from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.starts import events as starts
from sessions_app.stream.events import conversation, journal
from sessions_app.suspensions import events as suspensions
from sessions_app.turns import events as turns
from sessions_app.usage import events as usage
from sessions_app.waits import events as waits
from sessions_app.workspace import events as workspace

TOPICS = (
    session,
    starts,
    placement,
    journal,
    workspace,
    agents,
    background,
    conversation,
    permissions,
    turns,
    waits,
    suspensions,
    usage,
    finish,
    prompts,
)
"""The modules that declare events, in the order of the documents."""

__all__ = [
    "EVENT_CLASSES",
    "TOPICS",
    "Event",
    "Inbox",
    "event_label",
    "events_of_topic",
    "names_of",
    "rebuild_rows",
]


def events_of_topic(topic: object) -> list[type[Event]]:
    """Return the events that a module declares, in their order."""
    name = getattr(topic, "__name__", "")
    return [event for event in EVENT_CLASSES.values() if event.__module__ == name]


def names_of(*kinds: type[Event]) -> list[str]:
    """Return the names of the events that are of one of these kinds."""
    return [name for name, event in EVENT_CLASSES.items() if issubclass(event, kinds)]


def event_label(name: str, payload: Mapping[str, Any]) -> Label:
    """Return the label of a stored event; for an unknown one, its name in words."""
    declared = EVENT_CLASSES.get(name)
    if declared is None:
        return unknown_event_label(name)
    return declared.read(payload).timeline_label()


def rebuild_rows(rows: SessionRebuild, line: LogEvent) -> LogEvent:
    """Apply one event of an imported log to the rows; return it with our ids in place of foreign ones.

    Raises ValueError if it is inconsistent.
    """
    line = _with_our_ids(rows, line)
    declared = EVENT_CLASSES.get(line.name)
    if declared is not None:
        declared.rebuild(rows, line)
    elif line.name.startswith(prompts.NAME_PREFIX):
        raise ValueError("no prompt")  # a prompt without a known state could be sent twice
    return line


def _with_our_ids(rows: SessionRebuild, line: LogEvent) -> LogEvent:
    """Replace ids that are not UUIDs, from other producers, by UUIDs that are the same each time."""
    declared = EVENT_CLASSES.get(line.name)
    foreign = dict(declared.foreign_ids(line)) if declared is not None else {}
    if line.payload.get("run_id") is not None:
        foreign["run_id"] = ("run", line.payload["run_id"])
    ours = {field: str(stable_id(rows.session_id, kind, present)) for field, (kind, present) in foreign.items()}
    if all(line.payload.get(field) == value for field, value in ours.items()):
        return line
    return LogEvent(line.seq, line.at, line.name, {**line.payload, **ours}, line.once)
