"""What is under way in a run, and how far it has come: read, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from executors_app.domain import ExecutionFacts, ExecutorStatus
from sessions_app.domain.states import DesiredState, SessionState
from sessions_app.models import LeaseLost, NodeRun, TaskSession, WorkflowRun
from sessions_app.services.workflow_rows import record_of
from sessions_app.supervisor.rows import execution_facts
from sessions_app.supervisor.workflows import chains
from sessions_app.supervisor.workflows.leases import OPEN, RunLease
from sessions_app.workflows.records import Record

GIVEN_UP = (SessionState.FAILED, SessionState.COMPLETED, SessionState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one node: what was asked, and what is known of it from the rows."""

    path: str
    attempt: int
    record: Record
    job_id: str = ""
    session_id: str = ""
    waiting_for: str = ""
    deadline_at: datetime | None = None
    is_asked: bool = False
    """It is on its way already: a prompt in a ledger, a job that agentctl has confirmed."""
    output_tail: str = ""
    turn: chains.Turn = field(default_factory=chains.Turn)
    """Of an agent that was asked."""

    @property
    def kind(self) -> str:
        """agent, shell or function."""
        return str(self.record.request["kind"])

    def is_late(self, now: datetime) -> bool:
        """Whether its time is over; none passes while it waits for a user."""
        waits = chains.USER in (self.waiting_for, self.turn.waiting_for)
        return self.deadline_at is not None and self.deadline_at <= now and not waits


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a run."""

    is_new: bool
    is_to_end: bool
    """Somebody has cancelled it, or its task is over."""
    work: tuple[Work, ...]
    workspace: ExecutionFacts | None = None
    """Where its jobs run and its files are, once that is up."""
    no_workspace: str = ""
    """Why it will never be up."""


def look(lease: RunLease) -> Seen:
    """What is under way. Raises LeaseLost."""
    rows = WorkflowRun.objects.select_related("task", "workspace")
    run = rows.filter(id=lease.run_id, owner=lease.owner, generation=lease.generation, state__in=OPEN).first()
    if run is None:
        raise LeaseLost
    at_work = run.node_runs.filter(state="running").exclude(request={}).select_related("session__task")
    work = tuple(_work(row) for row in at_work.order_by("position"))
    facts, trouble = _workspace(run.workspace) if any(_wants_workspace(one) for one in work) else (None, "")
    is_to_end = run.cancel_requested_at is not None or run.task.is_over
    return Seen(run.state == "queued", is_to_end, work, facts, trouble)


def _wants_workspace(work: Work) -> bool:
    return work.kind == "shell" or (work.kind == "agent" and not work.is_asked)


def _work(row: NodeRun) -> Work:
    kind = row.request.get("kind")
    is_asked = bool(row.message_id) if kind == "agent" else row.deadline_at is not None
    turn = chains.follow(row.session, row.message_id) if kind == "agent" and is_asked else chains.Turn()
    return Work(
        path=row.path,
        attempt=row.attempt,
        record=record_of(row),
        job_id=row.job_id,
        session_id=str(row.session_id or ""),
        waiting_for=row.waiting_for,
        deadline_at=row.deadline_at,
        is_asked=is_asked,
        output_tail=row.output_tail,
        turn=turn,
    )


def _workspace(session: TaskSession | None) -> tuple[ExecutionFacts | None, str]:
    if session is None:
        return None, ""
    if session.state in GIVEN_UP:
        words = session.error_message or session.error_code or f"it is {session.state}"
        return None, f"the workspace of the run could not be opened: {words}"
    if session.desired_state == DesiredState.STOPPED:
        return None, "somebody has stopped the workspace of the run"
    facts = execution_facts(session.id)
    ready = session.executions.filter(status=ExecutorStatus.READY).values_list("id", flat=True)
    is_up = facts is not None and bool(facts.agentctl_url) and session.agent_execution_id in ready
    return (facts, "") if is_up else (None, "")
