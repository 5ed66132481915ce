"""Putting the rows of a session back: what its log tells, completed by its snapshot and its list of keys."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from executors_app.models import ExecutorRunning
from executors_app.plugins import agent_type
from sessions_app.domain.portable.lines import LogEvent
from sessions_app.domain.portable.rebuild import Rebuilt
from sessions_app.domain.portable.rows import MessageRow, RunRow
from sessions_app.domain.states import (
    OPEN_RUN_STATES,
    TERMINAL_STATES,
    DesiredState,
    RunState,
    SessionState,
    WorkState,
)
from sessions_app.domain.status import DerivedStatus
from sessions_app.management.portable.places import Places
from sessions_app.models import (
    PART_LIMIT,
    POLICIES,
    Message,
    MessagePart,
    NewEvent,
    PermissionRequest,
    Run,
    SessionEvent,
    TaskSession,
    write_numbered,
)
from sessions_app.services.portable.values import Values

AT_ONCE: Final = 1000
IMPORTED: Final = "imported"


def write_session(session_id: uuid.UUID, snapshot: Values, rows: Rebuilt, places: Places, last_seq: int) -> TaskSession:
    """The session's row and its execution's: stopped, at rest, whatever they were."""
    newer = snapshot.number("last_seq") >= last_seq
    told_state = snapshot.one_of("state", set(SessionState)) if newer else ""
    state = told_state or rows.state or SessionState.WAITING_FOR_INPUT
    work = snapshot.one_of("work_state", set(WorkState)) or rows.work_state
    session = TaskSession(
        id=session_id,
        task=places.task,
        state=state,
        agent_profile=places.profile,
        executor=places.executor,
        owner=places.owner,
        desired_state=DesiredState.STOPPED,
        stopped_by_user=True,
        work_state=WorkState.DONE if work == WorkState.DONE and state in TERMINAL_STATES else WorkState.IDLE,
        policy=snapshot.one_of("policy", POLICIES, ""),
        has_agent=snapshot.flag("has_agent") is not False,
        model=snapshot.text("model", 200),
        shares_worktree_of=_sharing(snapshot, places),
        continue_prompts=snapshot.flag("continue_prompts"),
        error_code=snapshot.text("error_code", 64) if told_state else rows.error_code,
        error_message=snapshot.text("error_message") if told_state else rows.error_message,
        last_seq=last_seq,
        told_status=rows.told_status if rows.told_status in set(DerivedStatus) else DerivedStatus.IDLE,
    )
    execution_id = snapshot.id("agent_execution_id")
    if execution_id is None or ExecutorRunning.objects.filter(id=execution_id).exists():
        execution_id = uuid.uuid4()
    session.agent_execution_id = execution_id
    session.save(force_insert=True)
    TaskSession.objects.filter(id=session_id).update(created_at=snapshot.time("created_at") or session.created_at)
    ExecutorRunning.objects.create(
        id=execution_id,
        session=session,
        task=places.task,
        executor=places.executor,
        runtime=places.executor.runtime,
        status=ExecutorRunning.Status.STOPPED,
        status_reason=IMPORTED,
        supports_workspace_only=agent_type(places.profile.agent_type).supports_workspace_only,
    )
    return session


def _sharing(snapshot: Values, places: Places) -> TaskSession | None:
    """Whose worktree it worked in, if that session of its task is here; else it gets one of its own."""
    owner_id = snapshot.id("shares_worktree_of")
    return TaskSession.objects.filter(id=owner_id, task=places.task).first() if owner_id else None


def write_events(session_id: uuid.UUID, events: Sequence[LogEvent]) -> None:
    """The log, under the numbers that it had."""
    onces = {event.once for event in events if event.once}
    taken: set[str] = set()
    for some in _pieces(sorted(onces)):
        taken |= {str(once) for once in SessionEvent.objects.filter(once__in=some).values_list("once", flat=True)}
    stretch: list[LogEvent] = []
    for event in events:
        if stretch and (event.seq != stretch[-1].seq + 1 or len(stretch) == AT_ONCE):
            _write_stretch(session_id, stretch, taken)
            stretch = []
        stretch.append(event)
    _write_stretch(session_id, stretch, taken)


def _write_stretch(session_id: uuid.UUID, stretch: Sequence[LogEvent], taken: set[str]) -> None:
    if stretch:
        write_numbered(session_id, stretch[0].seq, [_new(event, taken) for event in stretch])


def _new(event: LogEvent, taken: set[str]) -> NewEvent:
    name, once = event.name, event.once
    if once is not None and once in taken:
        once = None  # it was said elsewhere
    elif once is not None:
        taken.add(once)
    return NewEvent(name, dict(event.payload), event.at, once)


def write_conversation(session: TaskSession, rows: Rebuilt) -> None:
    """Messages with their texts, and what the agent asked."""
    for some in _pieces(list(rows.messages.values())):
        messages = [
            Message(
                id=one.id,
                session=session,
                seq=one.seq,
                updated_seq=one.updated_seq,
                role=one.role,
                key=one.key,
                payload=one.payload,
                complete=one.complete,
                created_at=one.created_at,
            )
            for one in some
        ]
        Message.objects.bulk_create(messages)
        MessagePart.objects.bulk_create(part for one in some for part in _parts(one))
    PermissionRequest.objects.bulk_create(
        PermissionRequest(
            id=one.id,
            session=session,
            run_id=one.run_id,
            tool_call=one.tool_call,
            options=one.options,
            state=one.state,
            option_id=one.option_id,
            requested_at=one.requested_at,
            settled_at=one.settled_at,
        )
        for one in rows.permissions.values()
    )


def _parts(row: MessageRow) -> Iterator[MessagePart]:
    text = "".join(row.pieces)
    for number, start in enumerate(range(0, len(text), PART_LIMIT)):
        yield MessagePart(message_id=row.id, number=number, text=text[start : start + PART_LIMIT])


def write_runs(session: TaskSession, snapshot: Values, rows: Rebuilt) -> None:
    """The turns; of several that seem to be open only the newest is."""
    told = {one.id("id"): one for one in snapshot.rows("runs")}
    runs = sorted(rows.runs.values(), key=lambda one: one.started_at)
    for earlier in runs[:-1]:
        if earlier.state in OPEN_RUN_STATES:
            earlier.state, earlier.reason, earlier.ended_at = RunState.INTERRUPTED, IMPORTED, earlier.started_at
    Run.objects.bulk_create(_run(session, one, told.get(one.id, Values(None))) for one in runs)


def _run(session: TaskSession, row: RunRow, told: Values) -> Run:
    return Run(
        id=row.id,
        session=session,
        message_id=row.message_id,
        state=row.state,
        has_process=told.flag("has_process") is not False,
        wait_kind=row.wait_kind or told.text("wait_kind", 16),
        wait_id=row.wait_id or told.text("wait_id", 128),
        wait_reason=told.text("wait_reason"),
        deadline_at=told.time("deadline_at"),
        waited=row.waited,
        reason=row.reason,
        since_seq=row.since_seq or told.number("since_seq"),
        started_at=told.time("started_at") or row.started_at,
        ended_at=row.ended_at,
    )


def _pieces(rows: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (rows[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE))
