"""One step of a run: its records and all that they ask for are written together, or nothing is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from executors_app import crash_points
from sessions_app.models import NodeRun, WorkflowRun
from sessions_app.services import workflow_notices
from sessions_app.services.errors import SessionsError
from sessions_app.services.intents import NO_TEXT
from sessions_app.services.workflow_rights import refusal
from sessions_app.services.workflow_rows import RECORD_FIELDS, record_of, records_of, workflow_of
from sessions_app.supervisor.workflows import chains, run_sessions
from sessions_app.supervisor.workflows.leases import RunLease, leased
from sessions_app.workflows import engine
from sessions_app.workflows.graph import Workflow
from sessions_app.workflows.problems import InvalidWorkflow
from sessions_app.workflows.records import Record, State

JOB_GRACE = timedelta(seconds=60)
"""How long after a script's own time somebody still waits for agentctl to say that it has ended."""
KEPT_ERROR = 10_000
RUN_FIELDS = ("state", "error", "outputs", "started_at", "ended_at", "owner", "lease_expires_at", "version")


@dataclass(frozen=True, slots=True)
class News:
    """What has been learned of one node since the last step; ``attempt`` tells it from what was asked since."""

    path: str
    attempt: int
    ended: Record | None = None
    """Its finished record, or one that asks for more."""
    is_late: bool = False
    prompt: str | None = None
    """What an agent is to be asked, with its files."""
    is_confirmed: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    """waiting_for and output_tail, where they are others now."""


def step(
    lease: RunLease,
    news: Sequence[News],
    now: datetime,
    *,
    jobs_ended: bool = False,
    graph: Workflow | None = None,
) -> bool:
    """Write what is new, and what is to be done next; True where there is more to do or to ask at once.

    ``graph``: of the run, where it is loaded already. A run that is to end does so once its scripts have,
    ``jobs_ended``; else the next look ends them first.
    Raises LeaseLost.
    """
    with transaction.atomic():
        run = leased(lease)
        more = _Step(run, now, graph).take(news, jobs_ended=jobs_ended)
        crash_points.reached("workflow.step_written", run.id)
    crash_points.reached("workflow.step_committed", run.id)
    return more


def storable(value: Any) -> Any:
    """The same with every character that no database stores replaced."""
    if isinstance(value, str):
        return NO_TEXT.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, Mapping):
        return {storable(name): storable(one) for name, one in value.items()}
    return [storable(one) for one in value] if isinstance(value, list | tuple) else value


def failed(record: Record, error: str, **outputs: Any) -> Record:
    """The record of work that could not be done, or not be asked for."""
    session = record.request.get("sessionId")
    told = {"sessionId": session, "exitCode": 1} if record.request.get("kind") == "agent" else {}
    return replace(record, state=State.FAILED, error=error, outputs={**told, **outputs})


class _Step:
    def __init__(self, run: WorkflowRun, now: datetime, graph: Workflow | None):
        self._run = run
        self._graph = graph
        self._now = now
        self._rows = {row.path: row for row in run.node_runs.select_related("session__task").order_by("position")}
        self._changed: dict[str, NodeRun] = {}
        self._again = False
        self._refusal: str | None = None

    def take(self, news: Sequence[News], *, jobs_ended: bool) -> bool:
        if self._run.started_at is None:
            self._run.started_at = self._now
        self._run.state = "running"
        for one in news:
            row = self._rows.get(one.path)
            if row is not None and row.state == State.RUNNING and row.attempt == one.attempt:
                self._learn(row, one)
        try:
            if self._run.cancel_requested_at is None and not self._run.task.is_over:
                self._advance(news)
            elif jobs_ended:
                self._cancel()
            else:
                self._again = True
        except InvalidWorkflow as error:
            self._end(engine.Outcome(succeeded=False, error=f"the workflow cannot be read any more: {error}"))
        self._save()
        return self._again and not self._run.is_over

    def _learn(self, row: NodeRun, news: News) -> None:
        for name, value in news.changes.items():
            self._set_waiting(row, value) if name == "waiting_for" else setattr(row, name, value)
            self._changed[row.path] = row
        if news.is_confirmed and row.deadline_at is None:
            row.deadline_at = self._now + self._time_of(row) + JOB_GRACE
            self._changed[row.path] = row
        if news.is_late:
            run_sessions.take_back(row)
        if news.ended is not None:
            self._keep(news.ended)

    def _set_waiting(self, row: NodeRun, value: str) -> None:
        if value == chains.USER:
            workflow_notices.waits(self._run, row)
        elif row.waiting_for == chains.USER:
            workflow_notices.waits_no_more(row)
            row.deadline_at = self._now + self._time_of(row)  # no time passes while somebody is waited for
        row.waiting_for = value

    def _time_of(self, row: NodeRun) -> timedelta:
        return timedelta(seconds=int(row.request.get("timeout", 0)))

    def _keep(self, record: Record) -> None:
        """Write a record into its row, which is made where there is none; one that asks anew is asked anew."""
        row = self._rows.get(record.path)
        if row is None:
            row = NodeRun(run=self._run, path=record.path, position=self._next_position(), started_at=self._now)
            self._rows[record.path] = row
        elif row.request and record.is_at_work and row.request != dict(record.request):
            row.attempt += 1
            row.message_id, row.job_id, row.deadline_at = "", "", None
        for name in RECORD_FIELDS:
            setattr(row, name, storable(getattr(record, name)))
        row.error = row.error[:KEPT_ERROR]
        if record.is_finished:
            if row.waiting_for == chains.USER:
                workflow_notices.waits_no_more(row)
            row.ended_at, row.deadline_at, row.waiting_for, row.output_tail = self._now, None, "", ""
        self._changed[row.path] = row

    def _next_position(self) -> int:
        return 1 + max((row.position for row in self._rows.values()), default=-1)

    def _advance(self, news: Sequence[News]) -> None:
        graph = self._graph or workflow_of(self._run)
        done = engine.advance(graph, self._run.inputs, records_of(self._rows.values()))
        for record in done.written:
            self._keep(record)
        if done.outcome is not None:
            self._end(done.outcome)
            return
        self._again = done.is_full
        self._ask({one.path: one.prompt for one in news if one.prompt is not None})

    def _ask(self, prompts: Mapping[str, str]) -> None:
        """Ask for the work of every record that wants some, sessions in one order so that nobody waits in a ring."""
        waiting = [row for row in self._rows.values() if row.state == State.RUNNING and row.request]
        for row in sorted(waiting, key=lambda row: (str(row.request.get("sessionId") or ""), row.position)):
            try:
                self._ask_one(row, prompts)
            except (run_sessions.CannotAsk, SessionsError) as error:
                self._keep(failed(record_of(row), str(error)))
                self._again = True

    def _ask_one(self, row: NodeRun, prompts: Mapping[str, str]) -> None:
        kind = row.request.get("kind")
        if kind == "function":
            self._again = True  # it is called at once
            return
        if kind == "shell" and not row.job_id:
            self._require_rights()
            row.session = run_sessions.workspace_of(self._run)
            row.job_id = run_sessions.name_of(self._run, row)
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
            self._refusal = refusal(run.started_by, run.team, run.executor, workflow_of(run))
        if self._refusal:
            raise run_sessions.CannotAsk(f"the rights of whoever started this run do not suffice: {self._refusal}")

    def _ask_agent(self, row: NodeRun, whole: str | None) -> bool:
        """False while its files have to be read."""
        self._require_rights()
        has_files = bool(row.request.get("promptFiles"))
        if has_files or not row.request.get("sessionId"):
            run_sessions.workspace_of(self._run)
        if has_files and whole is None:
            self._again = self._again or not row.waiting_for
            return False
        with transaction.atomic():  # what is refused leaves nothing behind
            run_sessions.ask_agent(self._run, row, str(row.request["prompt"]) if whole is None else whole)
        row.deadline_at = self._now + self._time_of(row)
        return True

    def _cancel(self) -> None:
        for row in list(self._rows.values()):
            if row.state == State.RUNNING and row.message_id:
                run_sessions.take_back(row)
        for record in engine.cancelled(records_of(self._rows.values())):
            self._keep(record)
        why = "somebody cancelled it" if self._run.cancel_requested_at is not None else "its task is over"
        self._end(engine.Outcome(succeeded=False, error=why), "cancelled")

    def _end(self, outcome: engine.Outcome, state: str = "") -> None:
        run = self._run
        run.state = state or ("succeeded" if outcome.succeeded else "failed")
        run.error, run.outputs = outcome.error[:KEPT_ERROR], storable(dict(outcome.outputs))
        run.ended_at = self._now
        run.owner, run.lease_expires_at = "", None
        self._write_rows()  # before anybody looks for what has failed
        run_sessions.put_to_rest(run)
        if run.state == "failed":
            workflow_notices.failed(run)

    def _save(self) -> None:
        self._write_rows()
        self._run.version += 1
        self._run.save(update_fields=RUN_FIELDS)

    def _write_rows(self) -> None:
        changed, self._changed = self._changed.values(), {}
        for row in changed:
            row.save()
