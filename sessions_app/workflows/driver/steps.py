"""Write one step of a run: its records and everything that they request are stored together, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import prefetch_related_objects

from executors_app.machine import crash_points
from executors_app.wire.executions import ExecutionFacts
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.prompts.services import UNSTORABLE_CHARACTERS
from sessions_app.workflows.driver import agent_work, prompt_progress, run_snapshot
from sessions_app.workflows.driver.leases import RunLease, lock_leased_run
from sessions_app.workflows.driver.run_snapshot import RunSnapshot
from sessions_app.workflows.engine import transitions
from sessions_app.workflows.engine.records import NodeRecord, NodeState
from sessions_app.workflows.language.diagnostics import InvalidWorkflow
from sessions_app.workflows.language.graph import WorkflowGraph
from sessions_app.workflows.models import NodeRun, WorkflowRun
from sessions_app.workflows.services import run_attention
from sessions_app.workflows.services.run_records import RECORD_FIELDS, graph_of_run, record_from_row, records_from_rows
from sessions_app.workflows.services.run_rights import run_refusal

JOB_GRACE = timedelta(seconds=60)
"""Extra time after a script's timeout: agentctl enforces the timeout itself and has this long to report it."""
MAX_ERROR_LENGTH = 10_000
RUN_FIELDS = ("state", "error", "outputs", "started_at", "ended_at", "owner", "lease_expires_at", "version")


@dataclass(frozen=True, slots=True)
class NodeUpdate:
    """What is new about one node since the last step.

    ``attempt`` is the attempt that it is about: if the node has made a new request meanwhile, the update is stale.
    """

    path: str
    attempt: int
    ended: NodeRecord | None = None
    """Its finished record, or a record that asks for more work."""
    is_late: bool = False
    prompt: str | None = None
    """The prompt for the agent, with the contents of its prompt files."""
    is_confirmed: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    """New values of waiting_for and output_tail, if they have changed."""


def write_step(
    lease: RunLease,
    updates: Sequence[NodeUpdate],
    now: datetime,
    *,
    jobs_ended: bool = False,
    graph: WorkflowGraph | None = None,
    workspace: ExecutionFacts | None = None,
) -> RunSnapshot | None:
    """Write updates and the next step of a run; return its state then if there is more to do at once, else None.

    Raises LeaseLost.

    ``graph`` is the graph of the run, and ``workspace`` its ready workspace, if they are loaded already. A run that
    must end does so only when its scripts have (``jobs_ended``); otherwise the driver stops them first and writes
    another step.
    """
    # Records, requests, prompts and the state of the run commit together. If we crash before the commit, nothing was
    # asked yet; after it, every request has a stored id, and asking again is recognised.
    with transaction.atomic():
        run = lock_leased_run(lease)
        writer = _StepWriter(run, now, graph)
        more = writer.take(updates, jobs_ended=jobs_ended)
        crash_points.reached("workflow.step_written", run.id)
    crash_points.reached("workflow.step_committed", run.id)
    if more:
        return run_snapshot.snapshot_of_rows(run, writer.rows_at_work(), workspace)
    return None


def sanitize_for_database(value: Any) -> Any:
    """Return the value with every character that databases cannot store replaced."""
    if isinstance(value, str):
        return UNSTORABLE_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, Mapping):
        return {sanitize_for_database(name): sanitize_for_database(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [sanitize_for_database(part) for part in value]
    return value


def failed_record(record: NodeRecord, error: str, **outputs: Any) -> NodeRecord:
    """Return the record of work that could not be done, or not be requested."""
    if record.request.get("kind") == "agent":
        outputs = {"sessionId": record.request.get("sessionId"), "exitCode": 1} | outputs
    return replace(record, state=NodeState.FAILED, error=error, outputs=outputs)


class _StepWriter:
    def __init__(self, run: WorkflowRun, now: datetime, graph: WorkflowGraph | None):
        self._run = run
        self._graph = graph
        self._now = now
        self._rows = {row.path: row for row in run.node_runs.order_by("position")}
        prefetch_related_objects([row for row in self._rows.values() if row.message_id], "session__task")
        self._changed: dict[str, NodeRun] = {}
        self._again = False
        self._refusal: str | None = None

    def take(self, updates: Sequence[NodeUpdate], *, jobs_ended: bool) -> bool:
        if self._run.started_at is None:
            self._run.started_at = self._now
        self._run.state = "running"
        for update in updates:
            row = self._rows.get(update.path)
            # The update may be older than the row: the node may have ended, or asked again, since it was read.
            if row is not None and row.state == NodeState.RUNNING and row.attempt == update.attempt:
                self._apply_update(row, update)
        try:
            if self._run.cancel_requested_at is None and not self._run.task.is_over:
                self._advance(updates)
            elif jobs_ended:
                self._cancel()
            else:
                self._again = True
        except InvalidWorkflow as error:
            problem = f"this version of Kandev cannot run the text of the workflow: {error}"
            self._end(transitions.RunOutcome(succeeded=False, error=problem))
        self._save()
        return self._again and not self._run.is_over

    def rows_at_work(self) -> list[NodeRun]:
        """Return the running rows with a request, by position."""
        return [row for row in self._rows.values() if row.state == NodeState.RUNNING and row.request]

    def _apply_update(self, row: NodeRun, update: NodeUpdate) -> None:
        for name, value in update.changes.items():
            if name == "waiting_for":
                self._set_waiting(row, value)
            else:
                setattr(row, name, value)
            self._changed[row.path] = row
        if update.is_confirmed and row.deadline_at is None:
            row.deadline_at = self._now + self._timeout_of(row) + JOB_GRACE
            self._changed[row.path] = row
            self._again = True  # it is confirmed and has not ended: ask for its end
        if update.is_late:
            agent_work.withdraw_prompt(row)
        if update.ended is not None:
            self._store(update.ended)

    def _set_waiting(self, row: NodeRun, value: str) -> None:
        if value == prompt_progress.WAITS_FOR_USER:
            run_attention.raise_node_waiting(self._run, row)
        elif row.waiting_for == prompt_progress.WAITS_FOR_USER:
            run_attention.resolve_node_waiting(row)
            row.deadline_at = self._now + self._timeout_of(row)  # the timeout starts over once the user has answered
        row.waiting_for = value

    def _timeout_of(self, row: NodeRun) -> timedelta:
        return timedelta(seconds=int(row.request.get("timeout", 0)))

    def _store(self, record: NodeRecord) -> None:
        """Copy a record to its row, and create the row if necessary.

        A record with a new request starts a new attempt, whose prompt or job gets a new id.
        """
        row = self._rows.get(record.path)
        if row is None:
            position = 1 + max((known.position for known in self._rows.values()), default=-1)
            row = NodeRun(run=self._run, path=record.path, position=position, started_at=self._now)
            self._rows[record.path] = row
        elif row.request and record.is_at_work and row.request != dict(record.request):
            row.attempt += 1
            row.message_id, row.job_id, row.deadline_at = "", "", None
        for name in RECORD_FIELDS:
            setattr(row, name, sanitize_for_database(getattr(record, name)))
        row.error = row.error[:MAX_ERROR_LENGTH]
        if record.is_finished:
            if row.waiting_for == prompt_progress.WAITS_FOR_USER:
                run_attention.resolve_node_waiting(row)
            row.ended_at, row.deadline_at, row.waiting_for, row.output_tail = self._now, None, "", ""
        self._changed[row.path] = row

    def _advance(self, updates: Sequence[NodeUpdate]) -> None:
        graph = self._graph or graph_of_run(self._run)
        done = transitions.advance_run(graph, self._run.inputs, records_from_rows(self._rows.values()))
        for record in done.written:
            self._store(record)
        if done.outcome is not None:
            self._end(done.outcome)
            return
        self._again = self._again or done.is_full
        self._request_all({update.path: update.prompt for update in updates if update.prompt is not None})

    def _request_all(self, prompts: Mapping[str, str]) -> None:
        """Request the work of every running record.

        Sessions are locked in the same order in every run, so that two runs that share sessions cannot deadlock.
        """
        for row in sorted(self.rows_at_work(), key=_lock_order):
            try:
                self._request_work(row, prompts)
            except (agent_work.WorkNotPossible, SessionsError) as error:
                self._store(failed_record(record_from_row(row), str(error)))
                self._again = True

    def _request_work(self, row: NodeRun, prompts: Mapping[str, str]) -> None:
        kind = row.request.get("kind")
        if kind == "function":
            self._again = True  # the driver calls it at once
        elif kind == "shell" and not row.job_id:
            self._require_rights()
            row.session = agent_work.workspace_session(self._run)
            row.job_id = agent_work.work_id(self._run, row)
            self._again = True
            self._changed[row.path] = row
        elif kind == "agent" and not row.message_id:
            self._request_turn(row, prompts.get(row.path))

    def _require_rights(self) -> None:
        """Raise WorkNotPossible if the user of the run no longer has the rights to run it, or its executor is disabled.

        A run can last for days. If its user has left the team since, or is no longer staff, no further script or
        prompt is sent in their name.
        """
        run = self._run
        if run.executor.disabled_at is not None:
            raise agent_work.WorkNotPossible(
                f"The executor “{run.executor.name}” was disabled after this run had started. Ask an administrator to "
                "enable it, then resume the run."
            )
        if self._refusal is None:
            self._refusal = run_refusal(run.started_by, run.team, run.executor, self._graph or graph_of_run(run))
        if self._refusal:
            problem = f"the user whose rights this run has may no longer run it: {self._refusal}"
            raise agent_work.WorkNotPossible(problem)

    def _request_turn(self, row: NodeRun, full_prompt: str | None) -> None:
        """Queue the prompt, unless its prompt files must be read first."""
        self._require_rights()
        has_files = bool(row.request.get("promptFiles"))
        if has_files or not row.request.get("sessionId"):
            agent_work.workspace_session(self._run)
        if full_prompt is None:
            if has_files:
                self._again = self._again or not row.waiting_for
                return
            full_prompt = str(row.request["prompt"])
        with transaction.atomic():  # a refused prompt leaves nothing behind, but the rest of the step commits
            agent_work.send_node_prompt(self._run, row, full_prompt)
        row.deadline_at = self._now + self._timeout_of(row)
        self._changed[row.path] = row

    def _cancel(self) -> None:
        for row in list(self._rows.values()):
            if row.state == NodeState.RUNNING and row.message_id:
                agent_work.withdraw_prompt(row)
        for record in transitions.cancel_records(records_from_rows(self._rows.values())):
            self._store(record)
        if self._run.cancel_requested_at is not None:
            reason = "a user cancelled it"
        else:
            reason = "its task is over"
        self._end(transitions.RunOutcome(succeeded=False, error=reason), "cancelled")

    def _end(self, outcome: transitions.RunOutcome, state: str = "") -> None:
        run = self._run
        if not state:
            state = "succeeded" if outcome.succeeded else "failed"
        run.state = state
        run.error, run.outputs = outcome.error[:MAX_ERROR_LENGTH], sanitize_for_database(dict(outcome.outputs))
        run.ended_at = self._now
        run.owner, run.lease_expires_at = "", None
        self._write_rows()  # the notice about a failed run reads the rows of its nodes
        agent_work.stop_run_sessions(run)
        if run.state == "failed":
            run_attention.raise_run_failed(run)

    def _save(self) -> None:
        self._write_rows()
        self._run.version += 1
        self._run.save(update_fields=RUN_FIELDS)

    def _write_rows(self) -> None:
        changed, self._changed = self._changed.values(), {}
        for row in changed:
            row.save()


def _lock_order(row: NodeRun) -> tuple[str, int]:
    return str(row.request.get("sessionId") or ""), row.position
