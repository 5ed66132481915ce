"""Write the log, the messages and the permission requests of an imported session."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from itertools import chain

from sessions_app.kernel.rules.log_event import LogEvent
from sessions_app.kernel.rules.rebuild import MessageRow, PermissionRow, SessionRebuild
from sessions_app.kernel.rules.states import RequestKind
from sessions_app.models import (
    PART_LIMIT,
    Message,
    MessagePart,
    NewEvent,
    PermissionRequest,
    SessionEvent,
    TaskSession,
    write_numbered_events,
)
from sessions_app.portable.rows.batches import BATCH_SIZE, in_batches


def write_events(session_id: uuid.UUID, events: Sequence[LogEvent]) -> None:
    """Write the log with its original sequence numbers."""
    taken = _taken_keys(events)
    stretch: list[LogEvent] = []
    for event in events:
        if stretch and (event.seq != stretch[-1].seq + 1 or len(stretch) == BATCH_SIZE):
            _write_event_batch(session_id, stretch, taken)
            stretch = []
        stretch.append(event)
    if stretch:
        _write_event_batch(session_id, stretch, taken)


def _taken_keys(events: Sequence[LogEvent]) -> set[str]:
    """Return the keys of the events (``once``) that events of this database have already."""
    keys = {event.once for event in events if event.once}
    taken: set[str] = set()
    for batch in in_batches(sorted(keys)):
        rows = SessionEvent.objects.filter(once__in=batch)
        taken.update(str(once) for once in rows.values_list("once", flat=True))
    return taken


def _write_event_batch(session_id: uuid.UUID, stretch: Sequence[LogEvent], taken: set[str]) -> None:
    write_numbered_events(session_id, stretch[0].seq, [_new_event(event, taken) for event in stretch])


def _new_event(event: LogEvent, taken: set[str]) -> NewEvent:
    once = event.once
    if once is not None and once in taken:
        once = None  # the key is unique in the table, and another event has it
    elif once is not None:
        taken.add(once)
    return NewEvent(event.name, dict(event.payload), event.at, once)


def write_conversation(session: TaskSession, rows: SessionRebuild) -> None:
    """Write the messages with their texts, and the permission requests."""
    for batch in in_batches(list(rows.messages.values())):
        Message.objects.bulk_create(_message(session, row) for row in batch)
        MessagePart.objects.bulk_create(chain.from_iterable(map(_message_parts, batch)))
    PermissionRequest.objects.bulk_create(_request(session, row) for row in rows.permissions.values())


def _message(session: TaskSession, row: MessageRow) -> Message:
    return Message(
        id=row.id,
        session=session,
        seq=row.seq,
        updated_seq=row.updated_seq,
        role=row.role,
        key=row.key,
        payload=row.payload,
        complete=row.complete,
        created_at=row.created_at,
    )


def _message_parts(row: MessageRow) -> Iterator[MessagePart]:
    text = "".join(row.pieces)
    for number, start in enumerate(range(0, len(text), PART_LIMIT)):
        yield MessagePart(message_id=row.id, number=number, text=text[start : start + PART_LIMIT])


def _request(session: TaskSession, row: PermissionRow) -> PermissionRequest:
    kind = RequestKind.QUESTION if row.question else RequestKind.PERMISSION
    return PermissionRequest(
        id=row.id,
        session=session,
        kind=kind,
        run_id=row.run_id,
        tool_call=row.tool_call,
        options=row.options,
        requested_at=row.requested_at,
        state=row.state,
        option_id=row.option_id,
        settled_at=row.settled_at,
        question=row.question,
        answer=row.answer,
        reason=row.reason,
    )
