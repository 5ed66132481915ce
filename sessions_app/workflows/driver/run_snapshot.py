"""Leases of runs, and snapshots of a run: the work of its nodes, and the progress of each agent prompt."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db.models import Q

from executors_app.machine.process import identity
from executors_app.models import ExecutorRunning
from executors_app.wire.executions import ExecutionFacts, ExecutorStatus
from sessions_app.kernel.rules.states import DesiredState, PromptState, RunState, SessionState
from sessions_app.models import (
    LeaseLost,
    Message,
    Prompt,
    TaskSession,
    Turn,
    answers_of,
    messages_of,
    newest_turn_of,
    texts_of,
)
from sessions_app.supervisor.executions import load_execution_facts
from sessions_app.supervisor.leases import database_now, is_local_execution, lease_ttl, leased_by_others
from sessions_app.turns.rules import turn_ends
from sessions_app.workflows.engine.records import NodeRecord
from sessions_app.workflows.models import NodeRun, WorkflowRun
from sessions_app.workflows.services.run_records import record_from_row

ACTIVE_STATES = ("queued", "running")


@dataclass(frozen=True, slots=True)
class RunLease:
    """The right to drive one run, and to write its rows. Each new owner raises the generation."""

    run_id: uuid.UUID
    owner: str
    generation: int


def acquire_leases(me: str) -> list[RunLease]:
    """Return the leases of all active runs that ``me`` holds or can acquire now.

    A run whose workspace is on another machine is left to that machine, even if it began here: only that machine can
    reach the workspace's agentctl.
    """
    rows = list(
        WorkflowRun.objects.filter(state__in=ACTIVE_STATES).values_list("id", "owner", "lease_expires_at", "generation")
    )
    away = _runs_elsewhere({key for key, *_ in rows})
    WorkflowRun.objects.filter(id__in=away, owner=me).update(owner="", lease_expires_at=None)
    held = leased_by_others([(key, owner, expires) for key, owner, expires, _ in rows], me) | away
    found = (_acquire_lease(key, owner, generation, me) for key, owner, _, generation in rows if key not in held)
    return [lease for lease in found if lease is not None]


def _runs_elsewhere(runs: set[uuid.UUID]) -> set[uuid.UUID]:
    """Return the runs whose workspace is supervised by another machine."""
    if not runs:
        return set()
    found = dict(WorkflowRun.objects.filter(id__in=runs, workspace__isnull=False).values_list("workspace_id", "id"))
    elsewhere = ExecutorRunning.objects.exclude(host_id__in=("", identity.host_id())).select_related("executor")
    return {
        found[execution.session_id]
        for execution in elsewhere.filter(session__in=found)
        if not is_local_execution(execution)
    }


def _acquire_lease(run_id: uuid.UUID, owner: str, generation: int, me: str) -> RunLease | None:
    """Acquire a lease, unless we hold it already.

    Two drivers may have read the same expired lease. The conditions of the UPDATE let only the first one win, because
    it raises the generation that the second one expects.
    """
    if owner == me:
        return RunLease(run_id, me, generation)
    won = WorkflowRun.objects.filter(Q(owner=owner), id=run_id, generation=generation, state__in=ACTIVE_STATES).update(
        owner=me, generation=generation + 1, lease_expires_at=database_now() + lease_ttl()
    )
    if won:
        return RunLease(run_id, me, generation + 1)
    return None


def renew_leases(me: str) -> None:
    """Renew every lease of ``me``."""
    WorkflowRun.objects.filter(owner=me).update(lease_expires_at=database_now() + lease_ttl())


def release_leases(me: str) -> None:
    """Release every lease of ``me``. The generations stay, so that a late write with an old lease still fails."""
    WorkflowRun.objects.filter(owner=me).update(owner="", lease_expires_at=None)


def lock_leased_run(lease: RunLease) -> WorkflowRun:
    """Return the run, locked until the transaction ends. Raises LeaseLost if another driver has it, or it is over.

    The lock keeps another driver from acquiring the lease between this check and the commit.
    """
    rows = WorkflowRun.objects.select_for_update(no_key=True, of=("self",))
    related = ("team", "task", "workspace", "executor", "agent_profile", "started_by")
    run: WorkflowRun | None = (
        rows.select_related(*related)
        .filter(id=lease.run_id, owner=lease.owner, generation=lease.generation, state__in=ACTIVE_STATES)
        .first()
    )
    if run is None:
        raise LeaseLost("Another supervisor drives this run, or the run is over.")
    return run


WAITS_FOR_USER, WAITS_FOR_AGENT, WAITS_FOR_MACHINE = "user", "agent", "machine"
TEXT_LIMIT: Final = 1 << 20
"""Maximum number of characters of an agent's answer; of a longer one, the end is kept."""
_SETTLED_UNSENT: Final = {
    PromptState.DISMISSED: "its prompt was dismissed",
    PromptState.WITHDRAWN: "its prompt was withdrawn before it was sent",
}
_BLOCKED_STATES: Final = frozenset({SessionState.ERROR, SessionState.FAILED})
_FINISHED_STATES: Final = frozenset({SessionState.COMPLETED, SessionState.CANCELLED})


@dataclass(frozen=True, slots=True)
class NodeTurn:
    """The progress of a prompt. ``result`` is None while it is not settled, and then the result for the node."""

    waiting_for: str = ""
    result: dict[str, Any] | None = None
    prompt: Prompt | None = None
    """The last prompt of the chain."""


def follow_prompt(session: TaskSession | None, message_id: str) -> NodeTurn:
    """Return the progress of the prompt ``message_id``; reads only."""
    if session is not None:
        row = session.prompts.filter(message_id=message_id).first()
    else:
        row = None
    if session is None or row is None:
        return NodeTurn(result=_failed(session, "its session was deleted"))
    row = last_prompt_of_chain(row)
    if row.state == PromptState.DONE:
        return NodeTurn(result=_turn_answer(session, row), prompt=row)
    if row.state in _SETTLED_UNSENT:
        return NodeTurn(result=_failed(session, _SETTLED_UNSENT[PromptState(row.state)]), prompt=row)
    if session.state in _FINISHED_STATES:
        return NodeTurn(result=_failed(session, "its session was closed"), prompt=row)
    return NodeTurn(waiting_for=_waits_for(session, row), prompt=row)


def last_prompt_of_chain(row: Prompt) -> Prompt:
    """Return the last prompt of a chain of prompts that were sent again or continued."""
    while (after := row.resent_as or row.continued_by) is not None:
        row = after
    return row


def _waits_for(session: TaskSession, row: Prompt) -> str:
    if row.state in (PromptState.HELD, PromptState.INTERRUPTED) or session.state in _BLOCKED_STATES:
        return WAITS_FOR_USER
    if session.runs.filter(message_id=row.message_id, state=RunState.WAITING).exists():
        return WAITS_FOR_USER
    if row.state == PromptState.QUEUED:
        return WAITS_FOR_AGENT
    return ""


def _failed(session: TaskSession | None, error: str) -> dict[str, Any]:
    return {"text": "", "sessionId": str(session.id) if session else "", "error": error}


def _turn_answer(session: TaskSession, row: Prompt) -> dict[str, Any]:
    turn = newest_turn_of(session.id, row.message_id)
    if turn is None:
        return {"text": "", "sessionId": str(session.id), "error": ""}
    return {"text": answer_text(turn), "sessionId": str(session.id), "error": _turn_error(turn)}


def _turn_error(turn: Turn) -> str:
    if turn.state == RunState.COMPLETED:
        return turn_ends.early_stop_sentence(turn.reason)
    if turn.state != RunState.FAILED:
        return f"the agent’s turn was {turn.state}"
    last = messages_of(turn).filter(role="status", payload__level="error").last()
    words = texts_of([last])[last.id] if last else turn.reason
    return f"the agent’s turn has failed: {words.strip()[:1000]}"


def answer_text(turn: Turn) -> str:
    """Return the messages of the agent in a turn."""
    messages: list[Message] = list(answers_of(turn))
    texts = texts_of(messages)
    return "\n\n".join(text for message in messages if (text := texts[message.id].strip()))[-TEXT_LIMIT:]


ABANDONED_STATES = (SessionState.FAILED, SessionState.COMPLETED, SessionState.CANCELLED)


@dataclass(frozen=True, slots=True)
class NodeWork:
    """The work of one node, as the rows describe it."""

    path: str
    attempt: int
    record: NodeRecord
    job_id: str = ""
    session_id: str = ""
    waiting_for: str = ""
    deadline_at: datetime | None = None
    is_asked: bool = False
    """Whether it was requested: the prompt is in the ledger, or agentctl has confirmed the job."""
    output_tail: str = ""
    turn: NodeTurn = field(default_factory=NodeTurn)
    """Progress of the prompt, for an agent that was asked."""

    @property
    def kind(self) -> str:
        """The kind of work: agent, shell or function."""
        return str(self.record.request["kind"])

    def is_late(self, now: datetime) -> bool:
        """Return whether its deadline has passed. No time passes while it waits for a user."""
        waits = WAITS_FOR_USER in (self.waiting_for, self.turn.waiting_for)
        return self.deadline_at is not None and self.deadline_at <= now and not waits


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The state of a run at one moment."""

    team_id: int
    is_new: bool
    must_end: bool
    """Whether a user has cancelled it, or its task is over."""
    work: tuple[NodeWork, ...]
    workspace: ExecutionFacts | None = None
    """The execution in which its scripts run; None until that is ready, or if no node needs it now."""
    workspace_problem: str = ""
    """Why the workspace will never be ready; empty otherwise."""


def read_run_snapshot(lease: RunLease) -> RunSnapshot:
    """Return the state of a run, with the work of its running nodes. Raises LeaseLost."""
    rows = WorkflowRun.objects.select_related("task", "workspace")
    run = rows.filter(id=lease.run_id, owner=lease.owner, generation=lease.generation, state__in=ACTIVE_STATES).first()
    if run is None:
        raise LeaseLost
    at_work = run.node_runs.filter(state="running").exclude(request={}).select_related("session__task")
    return snapshot_of_rows(run, at_work.order_by("position"))


def snapshot_of_rows(run: WorkflowRun, at_work: Iterable[NodeRun], known: ExecutionFacts | None = None) -> RunSnapshot:
    """Return the state of a run; ``at_work`` are its running rows with a request, by position.

    ``known`` is the ready execution of its workspace as it was read a moment ago. Each connection to it proves whether
    it is still that one.
    """
    work = tuple(_work_of_row(row) for row in at_work)
    if any(_needs_workspace(node_work) for node_work in work):
        facts, problem = _workspace_execution(run.workspace, known)
    else:
        facts, problem = (None, "")
    must_end = run.cancel_requested_at is not None or run.task.is_over
    return RunSnapshot(run.team_id, run.state == "queued", must_end, work, facts, problem)


def _needs_workspace(work: NodeWork) -> bool:
    return work.kind == "shell" or (work.kind == "agent" and not work.is_asked)


def _work_of_row(row: NodeRun) -> NodeWork:
    kind = row.request.get("kind")
    is_asked = bool(row.message_id) if kind == "agent" else row.deadline_at is not None
    if kind == "agent" and is_asked:
        turn = follow_prompt(row.session, row.message_id)
    else:
        turn = NodeTurn()
    return NodeWork(
        path=row.path,
        attempt=row.attempt,
        record=record_from_row(row),
        job_id=row.job_id,
        session_id=str(row.session_id or ""),
        waiting_for=row.waiting_for,
        deadline_at=row.deadline_at,
        is_asked=is_asked,
        output_tail=row.output_tail,
        turn=turn,
    )


def _workspace_execution(
    session: TaskSession | None, known: ExecutionFacts | None
) -> tuple[ExecutionFacts | None, str]:
    if session is None:
        return None, ""
    if session.state in ABANDONED_STATES:
        reason = session.error_message or session.error_code or f"it is {session.state}"
        return None, f"the workspace of the run could not be opened: {reason}"
    if session.desired_state == DesiredState.STOPPED:
        return None, "the workspace session of the run was stopped"
    if known is not None and known.id == str(session.agent_execution_id):
        return known, ""
    facts = load_execution_facts(session.id)
    is_up = facts is not None and bool(facts.agentctl_url) and facts.status == ExecutorStatus.READY
    if is_up:
        return (facts, "")
    return (None, "")
