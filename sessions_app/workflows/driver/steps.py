"""One step of a run: its records and all that they ask for are written together, or nothing is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from executors_app import crash_points
from sessions_app.services.errors import SessionsError
from sessions_app.services.intents import UNSTORABLE_CHARACTERS
from sessions_app.workflows.driver import node_work, run_snapshot
from sessions_app.workflows.driver.run_snapshot import RunLease, lock_leased_run
from sessions_app.workflows.engine import transitions
from sessions_app.workflows.engine.records import NodeRecord, NodeState
from sessions_app.workflows.language.diagnostics import InvalidWorkflow
from sessions_app.workflows.language.graph import WorkflowGraph
from sessions_app.workflows.models import NodeRun, WorkflowRun
from sessions_app.workflows.services import run_records
from sessions_app.workflows.services.assignment import run_refusal
from sessions_app.workflows.services.run_records import RECORD_FIELDS, graph_of_run, record_from_row, records_from_rows

JOB_GRACE = timedelta(seconds=60)
"""How long after a script's own time somebody still waits for agentctl to say that it has ended."""
MAX_ERROR_LENGTH = 10_000
RUN_FIELDS = ("state", "error", "outputs", "started_at", "ended_at", "owner", "lease_expires_at", "version")


@dataclass(frozen=True, slots=True)
class NodeUpdate:
    """What has been learned of one node since the last step; ``attempt`` tells it from what was asked since."""

    path: str
    attempt: int
    ended: NodeRecord | None = None
    """Its finished record, or one that asks for more."""
    is_late: bool = False
    prompt: str | None = None
    """What an agent is to be asked, with its files."""
    is_confirmed: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    """waiting_for and output_tail, where they are others now."""


def write_step(
    lease: RunLease,
    news: Sequence[NodeUpdate],
    now: datetime,
    *,
    jobs_ended: bool = False,
    graph: WorkflowGraph | None = None,
) -> bool:
    """Write what is new, and what is to be done next; True where there is more to do or to ask at once.

    ``graph``: of the run, where it is loaded already. A run that is to end does so once its scripts have,
    ``jobs_ended``; else the next look ends them first.
    Raises LeaseLost.
    """
    with transaction.atomic():
        run = lock_leased_run(lease)
        more = _StepWriter(run, now, graph).take(news, jobs_ended=jobs_ended)
        crash_points.reached("workflow.step_written", run.id)
    crash_points.reached("workflow.step_committed", run.id)
    return more


def sanitize_for_database(value: Any) -> Any:
    """The same with every character that no database stores replaced."""
    if isinstance(value, str):
        return UNSTORABLE_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, Mapping):
        return {sanitize_for_database(name): sanitize_for_database(one) for name, one in value.items()}
    return [sanitize_for_database(one) for one in value] if isinstance(value, list | tuple) else value


def failed_record(record: NodeRecord, error: str, **outputs: Any) -> NodeRecord:
    """The record of work that could not be done, or not be asked for."""
    session = record.request.get("sessionId")
    told = {"sessionId": session, "exitCode": 1} if record.request.get("kind") == "agent" else {}
    return replace(record, state=NodeState.FAILED, error=error, outputs={**told, **outputs})


class _StepWriter:
    def __init__(self, run: WorkflowRun, now: datetime, graph: WorkflowGraph | None):
        self._run = run
        self._graph = graph
        self._now = now
        self._rows = {row.path: row for row in run.node_runs.select_related("session__task").order_by("position")}
        self._changed: dict[str, NodeRun] = {}
        self._again = False
        self._refusal: str | None = None

    def take(self, news: Sequence[NodeUpdate], *, jobs_ended: bool) -> bool:
        if self._run.started_at is None:
            self._run.started_at = self._now
        self._run.state = "running"
        for one in news:
            row = self._rows.get(one.path)
            if row is not None and row.state == NodeState.RUNNING and row.attempt == one.attempt:
                self._learn(row, one)
        try:
            if self._run.cancel_requested_at is None and not self._run.task.is_over:
                self._advance(news)
            elif jobs_ended:
                self._cancel()
            else:
                self._again = True
        except InvalidWorkflow as error:
            self._end(transitions.RunOutcome(succeeded=False, error=f"the workflow cannot be read any more: {error}"))
        self._save()
        return self._again and not self._run.is_over

    def _learn(self, row: NodeRun, news: NodeUpdate) -> None:
        for name, value in news.changes.items():
            self._set_waiting(row, value) if name == "waiting_for" else setattr(row, name, value)
            self._changed[row.path] = row
        if news.is_confirmed and row.deadline_at is None:
            row.deadline_at = self._now + self._time_of(row) + JOB_GRACE
            self._changed[row.path] = row
        if news.is_late:
            node_work.withdraw_prompt(row)
        if news.ended is not None:
            self._keep(news.ended)

    def _set_waiting(self, row: NodeRun, value: str) -> None:
        if value == run_snapshot.WAITS_FOR_USER:
            run_records.raise_node_waiting(self._run, row)
        elif row.waiting_for == run_snapshot.WAITS_FOR_USER:
            run_records.resolve_node_waiting(row)
            row.deadline_at = self._now + self._time_of(row)  # no time passes while somebody is waited for
        row.waiting_for = value

    def _time_of(self, row: NodeRun) -> timedelta:
        return timedelta(seconds=int(row.request.get("timeout", 0)))

    def _keep(self, record: NodeRecord) -> None:
        """Write a record into its row, which is made where there is none; one that asks anew is asked anew."""
        row = self._rows.get(record.path)
        if row is None:
            row = NodeRun(run=self._run, path=record.path, position=self._next_position(), started_at=self._now)
            self._rows[record.path] = row
        elif row.request and record.is_at_work and row.request != dict(record.request):
            row.attempt += 1
            row.message_id, row.job_id, row.deadline_at = "", "", None
        for name in RECORD_FIELDS:
            setattr(row, name, sanitize_for_database(getattr(record, name)))
        row.error = row.error[:MAX_ERROR_LENGTH]
        if record.is_finished:
            if row.waiting_for == run_snapshot.WAITS_FOR_USER:
                run_records.resolve_node_waiting(row)
            row.ended_at, row.deadline_at, row.waiting_for, row.output_tail = self._now, None, "", ""
        self._changed[row.path] = row

    def _next_position(self) -> int:
        return 1 + max((row.position for row in self._rows.values()), default=-1)

    def _advance(self, news: Sequence[NodeUpdate]) -> None:
        graph = self._graph or graph_of_run(self._run)
        done = transitions.advance_run(graph, self._run.inputs, records_from_rows(self._rows.values()))
        for record in done.written:
            self._keep(record)
        if done.outcome is not None:
            self._end(done.outcome)
            return
        self._again = done.is_full
        self._ask({one.path: one.prompt for one in news if one.prompt is not None})

    def _ask(self, prompts: Mapping[str, str]) -> None:
        """Ask for the work of every record that wants some, sessions in one order so that nobody waits in a ring."""
        waiting = [row for row in self._rows.values() if row.state == NodeState.RUNNING and row.request]
        for row in sorted(waiting, key=lambda row: (str(row.request.get("sessionId") or ""), row.position)):
            try:
                self._ask_one(row, prompts)
            except (node_work.WorkNotPossible, SessionsError) as error:
                self._keep(failed_record(record_from_row(row), str(error)))
                self._again = True

    def _ask_one(self, row: NodeRun, prompts: Mapping[str, str]) -> None:
        kind = row.request.get("kind")
        if kind == "function":
            self._again = True  # it is called at once
            return
        if kind == "shell" and not row.job_id:
            self._require_rights()
            row.session = node_work.workspace_session(self._run)
            row.job_id = node_work.work_id(self._run, row)
            self._again = True
        elif kind == "agent" and not row.message_id:
            if not self._ask_agent(row, prompts.get(row.path)):
                return
        else:
            return
        self._changed[row.path] = row

    def _require_rights(self) -> None:
        """Raise CannotAsk where whoever the run works for may not have it run any more.

        A run can last for days: somebody who has left the team since, or is no longer staff, has no further script
        and no further prompt sent.
        """
        if self._refusal is None:
            run = self._run
            self._refusal = run_refusal(run.started_by, run.team, run.executor, graph_of_run(run))
        if self._refusal:
            raise node_work.WorkNotPossible(f"the rights of whoever started this run do not suffice: {self._refusal}")

    def _ask_agent(self, row: NodeRun, whole: str | None) -> bool:
        """False while its files have to be read."""
        self._require_rights()
        has_files = bool(row.request.get("promptFiles"))
        if has_files or not row.request.get("sessionId"):
            node_work.workspace_session(self._run)
        if has_files and whole is None:
            self._again = self._again or not row.waiting_for
            return False
        with transaction.atomic():  # what is refused leaves nothing behind
            node_work.send_node_prompt(self._run, row, str(row.request["prompt"]) if whole is None else whole)
        row.deadline_at = self._now + self._time_of(row)
        return True

    def _cancel(self) -> None:
        for row in list(self._rows.values()):
            if row.state == NodeState.RUNNING and row.message_id:
                node_work.withdraw_prompt(row)
        for record in transitions.cancel_records(records_from_rows(self._rows.values())):
            self._keep(record)
        why = "somebody cancelled it" if self._run.cancel_requested_at is not None else "its task is over"
        self._end(transitions.RunOutcome(succeeded=False, error=why), "cancelled")

    def _end(self, outcome: transitions.RunOutcome, state: str = "") -> None:
        run = self._run
        run.state = state or ("succeeded" if outcome.succeeded else "failed")
        run.error, run.outputs = outcome.error[:MAX_ERROR_LENGTH], sanitize_for_database(dict(outcome.outputs))
        run.ended_at = self._now
        run.owner, run.lease_expires_at = "", None
        self._write_rows()  # before anybody looks for what has failed
        node_work.stop_run_sessions(run)
        if run.state == "failed":
            run_records.raise_run_failed(run)

    def _save(self) -> None:
        self._write_rows()
        self._run.version += 1
        self._run.save(update_fields=RUN_FIELDS)

    def _write_rows(self) -> None:
        changed, self._changed = self._changed.values(), {}
        for row in changed:
            row.save()
