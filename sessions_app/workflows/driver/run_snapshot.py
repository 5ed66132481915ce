"""Snapshots of a run: the work of its nodes, and its workspace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from executors_app.wire.executions import ExecutionFacts, ExecutorStatus
from sessions_app.kernel.rules.states import DesiredState, SessionState
from sessions_app.models import (
    LeaseLost,
    TaskSession,
)
from sessions_app.supervisor.executions import load_execution_facts
from sessions_app.workflows.driver.leases import ACTIVE_STATES, RunLease
from sessions_app.workflows.driver.prompt_progress import WAITS_FOR_USER, NodeTurn, follow_prompt
from sessions_app.workflows.engine.records import NodeRecord
from sessions_app.workflows.models import NodeRun, WorkflowRun
from sessions_app.workflows.services.run_records import record_from_row

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
    is_requested: bool = False
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
        if self.deadline_at is None or WAITS_FOR_USER in (self.waiting_for, self.turn.waiting_for):
            return False
        return self.deadline_at <= now


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
    work = tuple(map(_work_of_row, at_work))
    workspace, problem = None, ""
    if any(map(_needs_workspace, work)):
        workspace, problem = _workspace_execution(run.workspace, known)
    return RunSnapshot(
        team_id=run.team_id,
        is_new=run.state == "queued",
        must_end=run.cancel_requested_at is not None or run.task.is_over,
        work=work,
        workspace=workspace,
        workspace_problem=problem,
    )


def _needs_workspace(work: NodeWork) -> bool:
    return work.kind == "shell" or (work.kind == "agent" and not work.is_requested)


def _work_of_row(row: NodeRun) -> NodeWork:
    turn = NodeTurn()
    if row.request.get("kind") == "agent":
        is_requested = bool(row.message_id)
        if is_requested:
            turn = follow_prompt(row.session, row.message_id)
    else:
        is_requested = row.deadline_at is not None
    return NodeWork(
        path=row.path,
        attempt=row.attempt,
        record=record_from_row(row),
        job_id=row.job_id,
        session_id=str(row.session_id or ""),
        waiting_for=row.waiting_for,
        deadline_at=row.deadline_at,
        is_requested=is_requested,
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
    execution = load_execution_facts(session.id)
    if execution is None or not execution.agentctl_url or execution.status != ExecutorStatus.READY:
        return None, ""
    return execution, ""
