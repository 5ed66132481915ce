"""Create the rows of an imported session: what it refers to, the session itself, its log and its conversation."""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from django.contrib.auth.models import Group, User
from django.db.models import Q
from django.utils import timezone

from executors_app.mcp_servers import MAX_SERVERS
from executors_app.models import AgentProfile, Executor, ExecutorRunning
from executors_app.plugins import agent_type, agent_types, runtimes
from executors_app.wire.agent_settings import MAX_SETTINGS, is_identifier
from executors_app.wire.replayed_texts import text_digest
from sessions_app.agents.models import APPLIED, WAITING
from sessions_app.agents.services.mcp_servers import Level, inherited_servers
from sessions_app.kernel.rules.states import (
    OPEN_RUN_STATES,
    TERMINAL_STATES,
    DerivedStatus,
    DesiredState,
    RequestKind,
    RunState,
    SessionState,
    TaskState,
    WorkState,
)
from sessions_app.models import (
    PART_LIMIT,
    AgentSettings,
    Message,
    MessagePart,
    NewEvent,
    PermissionRequest,
    Repository,
    SessionEvent,
    Task,
    TaskSession,
    Turn,
    write_numbered_events,
)
from sessions_app.portable.reading import SnapshotValues
from sessions_app.portable.rules.portable_lines import LogEvent
from sessions_app.portable.rules.portable_rebuild import MessageRow, PermissionRow, RunRow, SessionRebuild
from sessions_app.recovery.rules import verification
from sessions_app.recovery.rules.recovery_facts import Policy

DEFAULT_TEAM: Final = "Imported"
INERT_RUNTIME: Final = "local_standalone"
INERT_TYPE: Final = "custom_acp"


@dataclass
class SessionParents:
    """The rows that a session refers to, with notes about those that were created."""

    task: Task
    profile: AgentProfile
    executor: Executor
    owner: User | None
    notes: list[str] = field(default_factory=list)


def find_or_create_parents(session_id: uuid.UUID, snapshot: SnapshotValues, team_name: str) -> SessionParents:
    """Find or create the rows that a session refers to. ``team_name`` is the team of records that name none."""
    notes: list[str] = []
    team, made = Group.objects.get_or_create(name=snapshot.inner("task").text("team", 150) or team_name)
    if made:
        notes.append(f"team “{team.name}” is new, without members")
    task = _find_or_create_task(session_id, snapshot, team, notes)
    profile = _find_or_create_profile(snapshot, team, notes)
    executor = _find_or_create_executor(snapshot.inner("executor"), notes)
    notes += _notes_on_servers(snapshot.inner("task").inner("mcp_servers"), task)
    return SessionParents(task, profile, executor, find_user(snapshot.text("owner")), notes)


def _notes_on_servers(told: SnapshotValues, task: Task) -> list[str]:
    """Return notes on MCP servers that team or repository lack here.

    They are never added: they name programs that agents start, and addresses that are sent secrets.
    """
    known, notes = inherited_servers(task.team_id, task.repository_id), []
    for level in (Level.TEAM, Level.REPOSITORY):
        here = {str(server.get("name")) for server in known.get(level, ())}
        names = [name for one in told.rows(level) if (name := one.text("name", 64)) and name not in here]
        if names:
            shown = ", ".join(f"“{name}”" for name in names[:MAX_SERVERS])
            notes.append(f"MCP servers {shown} of the {level} were not added; add them in the team’s settings")
    return notes


def find_user(name: str) -> User | None:
    """Return the user with this name, or None."""
    if name:
        return User.objects.filter(username=name).first()
    return None


def _find_or_create_task(session_id: uuid.UUID, snapshot: SnapshotValues, team: Group, notes: list[str]) -> Task:
    told = snapshot.inner("task")
    wanted = told.id("id")
    found = Task.objects.filter(id=wanted, team=team).first() if wanted else None
    if found is not None:
        return found
    if wanted is None or Task.objects.filter(id=wanted).exists():  # never add a session to another team's task
        wanted = uuid.uuid5(session_id, "task")
    task, made = Task.objects.get_or_create(
        id=wanted,
        defaults={
            "title": told.text("title", 300) or snapshot.text("title", 300) or "Imported session",
            "description": told.text("description"),
            "team": team,
            "repository": _find_or_create_repository(told, snapshot, team, notes),
            "base_branch": told.text("base_branch", 255),
            "state": told.one_of("state", set(TaskState), TaskState.TODO),
            "archived_at": told.time("archived_at"),
            "created_by": find_user(told.text("created_by")),
        },
    )
    created_at = told.time("created_at") or snapshot.time("created_at")
    if made and created_at:
        Task.objects.filter(id=task.id).update(created_at=created_at)
    return task


def _find_or_create_repository(
    told: SnapshotValues, snapshot: SnapshotValues, team: Group, notes: list[str]
) -> Repository | None:
    path = told.inner("repository").text("path") or ("" if told else snapshot.text("working_dir"))
    found: Repository | None = Repository.objects.filter(team=team, path=path).first()
    if found is None:
        if path:
            shown = f"“{path[:200]}” is not opened to team “{team.name}”"
        else:
            shown = "none is recorded"
        notes.append(f"repository: {shown}; its sessions can be read, but not started")
    return found


def _find_or_create_profile(snapshot: SnapshotValues, team: Group, notes: list[str]) -> AgentProfile:
    told, provider = snapshot.inner("agent_profile"), snapshot.inner("provider")
    kind, model = provider.text("type", 64), provider.text("model", 200)
    name = told.text("name", 200) or f"{kind} {model}".strip()[:200] or "Imported agent"
    usable = AgentProfile.objects.filter(Q(team=team) | Q(team=None))
    found = usable.filter(id=told.id("id") or uuid.uuid4()).first() or usable.filter(name=name).first()
    if found is not None:
        return found
    agent_type = told.one_of("agent_type", agent_types(), kind if kind in agent_types() else INERT_TYPE)
    notes.append(f"agent profile “{name}” of type {agent_type} is new, without command and environment")
    return AgentProfile.objects.create(
        name=name,
        team=team,
        agent_type=agent_type,
        model=told.text("model", 200) or model,
        supports_session_resume=told.flag("supports_session_resume"),
        history_context_injection=told.flag("history_context_injection"),
    )


def _find_or_create_executor(told: SnapshotValues, notes: list[str]) -> Executor:
    name = told.text("name", 190) or "Imported"
    runtime = told.one_of("runtime", runtimes(), INERT_RUNTIME)
    named = Executor.objects.filter(name=name).first()
    if named is not None and (not told or named.runtime == told.text("runtime")):
        return named
    if named is not None:
        name = f"{name} ({runtime})"
    executor, made = Executor.objects.get_or_create(name=name, defaults={"runtime": runtime, "max_live": 0})
    if made:
        notes.append(f"executor “{name}” is new, with a limit of 0 agents")
    return executor


BATCH_SIZE: Final = 1000
IMPORTED_ERROR_CODE: Final = "imported"


def write_session(
    session_id: uuid.UUID, snapshot: SnapshotValues, rows: SessionRebuild, places: SessionParents, last_seq: int
) -> TaskSession:
    """Create the rows of the session and its execution, both stopped, whatever their recorded state."""
    # The snapshot is a file beside the log and may be older. The log's last states are then the right ones.
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
        policy=snapshot.one_of("policy", tuple(Policy), ""),
        has_agent=snapshot.flag("has_agent") is not False,
        model=snapshot.text("model", 200),
        shares_worktree_of=_session_sharing_worktree(snapshot, places),
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
        status_reason=IMPORTED_ERROR_CODE,
        supports_workspace_only=agent_type(places.profile.agent_type).supports_workspace_only,
    )
    return session


def write_chosen_settings(session: TaskSession, snapshot: SnapshotValues) -> None:
    """Write the settings of the agent that users chose; the first start applies them before the first prompt."""
    row = AgentSettings(session=session)
    for told in snapshot.rows("chosen_settings")[:MAX_SETTINGS]:
        setting, value = told.raw("setting"), told.raw("value")
        if not is_identifier(setting) or not (isinstance(value, bool) or is_identifier(value)):
            continue
        accepted = told.flag("accepted") is True
        change = {"id": uuid.uuid4().hex, "value": value, "state": APPLIED if accepted else WAITING, "code": ""}
        change |= {"reason": "", "by": "", "at": timezone.now().isoformat()}
        row.choose(setting, change=change, **({"value": value} if accepted else {}))
    if row.chosen:
        row.save(force_insert=True)


def _session_sharing_worktree(snapshot: SnapshotValues, places: SessionParents) -> TaskSession | None:
    """Return the session whose worktree it shared, if that exists here; otherwise None."""
    owner_id = snapshot.id("shares_worktree_of")
    if owner_id:
        return TaskSession.objects.filter(id=owner_id, task=places.task).first()
    return None


def write_events(session_id: uuid.UUID, events: Sequence[LogEvent]) -> None:
    """Write the log with its original sequence numbers."""
    onces = {event.once for event in events if event.once}
    taken: set[str] = set()
    for some in _batches(sorted(onces)):
        taken |= {str(once) for once in SessionEvent.objects.filter(once__in=some).values_list("once", flat=True)}
    stretch: list[LogEvent] = []
    for event in events:
        if stretch and (event.seq != stretch[-1].seq + 1 or len(stretch) == BATCH_SIZE):
            _write_event_batch(session_id, stretch, taken)
            stretch = []
        stretch.append(event)
    _write_event_batch(session_id, stretch, taken)


def _write_event_batch(session_id: uuid.UUID, stretch: Sequence[LogEvent], taken: set[str]) -> None:
    if stretch:
        write_numbered_events(session_id, stretch[0].seq, [_new_event(event, taken) for event in stretch])


def _new_event(event: LogEvent, taken: set[str]) -> NewEvent:
    name, once = event.name, event.once
    if once is not None and once in taken:
        once = None  # the key is unique in the table, and another event has it
    elif once is not None:
        taken.add(once)
    return NewEvent(name, dict(event.payload), event.at, once)


def write_conversation(session: TaskSession, rows: SessionRebuild) -> None:
    """Write the messages with their texts, and the permission requests."""
    for some in _batches(list(rows.messages.values())):
        Message.objects.bulk_create(Message(session=session, **_values(one, without=("pieces",))) for one in some)
        MessagePart.objects.bulk_create(part for one in some for part in _message_parts(one))
    PermissionRequest.objects.bulk_create(
        PermissionRequest(
            session=session, kind=RequestKind.QUESTION if one.question else RequestKind.PERMISSION, **_values(one)
        )
        for one in rows.permissions.values()
    )


def _values(row: MessageRow | PermissionRow, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values of a rebuilt row by column."""
    return {one.name: getattr(row, one.name) for one in fields(row) if one.name not in without}


def _message_parts(row: MessageRow) -> Iterator[MessagePart]:
    text = "".join(row.pieces)
    for number, start in enumerate(range(0, len(text), PART_LIMIT)):
        yield MessagePart(message_id=row.id, number=number, text=text[start : start + PART_LIMIT])


def write_runs(session: TaskSession, snapshot: SnapshotValues, rows: SessionRebuild) -> None:
    """Write the runs. If several are open, all but the newest become interrupted."""
    told = {one.id("id"): one for one in snapshot.rows("runs")}
    runs = sorted(rows.runs.values(), key=lambda one: one.started_at)
    for earlier in runs[:-1]:
        if earlier.state in OPEN_RUN_STATES:
            earlier.state, earlier.reason = RunState.INTERRUPTED, IMPORTED_ERROR_CODE
            earlier.ended_at = earlier.started_at
    prompts = dict(session.prompts.values_list("message_id", "id"))
    texts = _texts_of_turns(runs, list(rows.messages.values()))
    Turn.objects.bulk_create(
        _run_row(session, one, told.get(one.id, SnapshotValues(None)), prompts.get(one.message_id), texts[one.id])
        for one in runs
    )


@dataclass
class _TurnTexts:
    """What was asked in a turn, and what the agent said last."""

    request: MessageRow | None = None
    answer: MessageRow | None = None


def _texts_of_turns(runs: Sequence[RunRow], messages: Sequence[MessageRow]) -> dict[uuid.UUID, _TurnTexts]:
    """Return the texts of each turn whose beginning is in the log."""
    found = {run.id: _TurnTexts() for run in runs}
    turns = {run.first_seq: run for run in runs if run.first_seq is not None}
    starts = sorted(turns)
    for message in sorted(messages, key=lambda one: one.seq):
        place = bisect_left(starts, message.seq) - 1
        if place < 0:
            continue
        turn = turns[starts[place]]
        if message.role == "user" and message.key == turn.message_id:
            found[turn.id].request = message
        elif message.role == "agent" and (turn.last_seq is None or message.seq < turn.last_seq):
            found[turn.id].answer = message
    return found


def _run_row(session: TaskSession, row: RunRow, told: SnapshotValues, prompt_id: int | None, texts: _TurnTexts) -> Turn:
    request, answer = texts.request, texts.answer if row.state == RunState.COMPLETED else None
    return Turn(
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
        origin=row.origin,
        prompt_id=prompt_id,
        first_seq=row.first_seq if request is None else request.seq - 1,
        last_seq=row.last_seq,
        stop_reason=row.stop_reason,
        usage=row.usage,
        request_digest=None if request is None else text_digest("".join(request.pieces)),
        answer_digest=None if answer is None else verification.answer_digest("".join(answer.pieces)),
        snapshot_before=row.snapshot_before,
        snapshot_after=row.snapshot_after,
    )


def _batches(rows: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (rows[start : start + BATCH_SIZE] for start in range(0, len(rows), BATCH_SIZE))
