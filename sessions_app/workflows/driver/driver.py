"""Driving the runs of workflows: look, ask outside, write; each run in a lane of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from functools import partial
from typing import Any, Final

from django.utils import timezone

from executors_app import crash_points
from executors_app.client import AgentctlClient
from sessions_app.domain import actor_context
from sessions_app.models import LeaseLost
from sessions_app.services.database_threads import DatabaseThread
from sessions_app.services.errors import ChecksUnavailable
from sessions_app.supervisor.dispatcher import SessionQueue
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.workflows.driver import node_work, run_snapshot, steps
from sessions_app.workflows.driver.run_snapshot import NodeWork, RunLease, RunSnapshot
from sessions_app.workflows.driver.steps import NodeUpdate
from sessions_app.workflows.engine.transitions import complete_record
from sessions_app.workflows.language import sandbox
from sessions_app.workflows.language.diagnostics import InvalidWorkflow
from sessions_app.workflows.language.graph import WorkflowGraph
from sessions_app.workflows.models import WorkflowRun
from sessions_app.workflows.services.run_records import graph_of_run

log = logging.getLogger(__name__)
POLL_INTERVAL: Final = 0.5
"""Seconds at most between two looks at the runs that are under way."""


class WorkflowDriver:
    """Drives every run whose lease it can have; what it knows is in the rows."""

    name = "workflows"

    def __init__(self, registry: ExecutionRegistry, *, database: DatabaseThread | None = None):
        self._registry = registry
        self._database = database or DatabaseThread("workflows")
        self._lanes: dict[uuid.UUID, SessionQueue] = {}
        self._leases: dict[uuid.UUID, RunLease] = {}
        self._graphs: dict[uuid.UUID, WorkflowGraph] = {}
        self._bell = asyncio.Event()

    def wake(self) -> None:
        """A turn has ended: what waits for it goes on at once."""
        if self._leases:
            self._bell.set()

    async def run_once(self) -> None:
        """One look at what is under way; called again and again."""
        self._bell.clear()
        await self.look()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_INTERVAL):
                await self._bell.wait()

    async def look(self) -> None:
        """Take what is open, and go on with all of it."""
        found = await self._database(run_snapshot.acquire_leases, self._registry.boot_id)
        self._leases = {lease.run_id: lease for lease in found}
        self._graphs = {run_id: graph for run_id, graph in self._graphs.items() if run_id in self._leases}
        self._lanes = {key: lane for key, lane in self._lanes.items() if key in self._leases or _is_lane_busy(lane)}
        for run_id in self._leases:
            if run_id not in self._lanes:
                self._lanes[run_id] = SessionQueue(partial(self._advance_run, run_id), self._registry.outage)
            self._lanes[run_id].wake()

    async def renew(self) -> None:
        """Prolong the leases."""
        await self._database(run_snapshot.renew_leases, self._registry.boot_id)

    async def settle(self) -> None:
        """Wait until every lane is at rest."""
        while busy := [lane.task for lane in self._lanes.values() if lane.task is not None and not lane.task.done()]:
            await asyncio.wait(busy)

    async def close(self) -> None:
        """End the lanes and give the leases back; what they were doing is in the rows."""
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._database.run_at_shutdown(run_snapshot.release_leases, self._registry.boot_id)
        self._database.close()

    async def _advance_run(self, run_id: uuid.UUID) -> bool:
        """One step of a run; True where there is more to do at once."""
        lease = self._leases.get(run_id)
        if lease is None:
            return False
        try:
            with actor_context.acting_as(cause="workflow"):
                return await self._step(lease)
        except LeaseLost:
            self._leases.pop(run_id, None)
            return False

    async def _step(self, lease: RunLease) -> bool:
        seen = await self._database(run_snapshot.read_run_snapshot, lease)
        if seen.must_end:
            await self._end_jobs(seen)
            return await self._database(steps.write_step, lease, [], timezone.now(), jobs_ended=True)
        news = [one for one in await asyncio.gather(*(self._learn(lease, seen, work) for work in seen.work)) if one]
        if not news and not seen.is_new and seen.work:
            return False
        with contextlib.suppress(InvalidWorkflow):  # the step ends the run then
            await self._graph(lease)  # before the step, so that no transaction waits for a text to be loaded
        return await self._database(steps.write_step, lease, news, timezone.now(), graph=self._graphs.get(lease.run_id))

    async def _graph(self, lease: RunLease) -> WorkflowGraph:
        """The graph of a run, loaded once. Raises InvalidWorkflow, and ChecksUnavailable to be tried again."""
        if lease.run_id not in self._graphs:
            run = await self._database(_load_run_text, lease)
            self._graphs[lease.run_id] = await asyncio.to_thread(graph_of_run, run)
        return self._graphs[lease.run_id]

    async def _end_jobs(self, seen: RunSnapshot) -> None:
        client = self._client(seen)
        if client is not None:
            await asyncio.gather(*(node_work.cancel_job(client, one.job_id) for one in seen.work if one.job_id))
            crash_points.reached("workflow.jobs_ended")

    def _client(self, seen: RunSnapshot) -> AgentctlClient | None:
        return AgentctlClient.of(seen.workspace, self._registry.http) if seen.workspace else None

    async def _learn(self, lease: RunLease, seen: RunSnapshot, work: NodeWork) -> NodeUpdate | None:
        """What is new about one node; None where nothing is."""
        if work.is_late(timezone.now()):
            return await self._time_out(seen, work)
        if work.kind == "function":
            return await self._ended(lease, work, await node_work.call_function(work.record.request))
        if work.kind == "agent" and work.is_asked:
            turn = work.turn
            return (
                await self._ended(lease, work, turn.result) if turn.result else _waiting_update(work, turn.waiting_for)
            )
        return await self._update_from_workspace(lease, seen, work)

    async def _update_from_workspace(self, lease: RunLease, seen: RunSnapshot, work: NodeWork) -> NodeUpdate | None:
        """Of what happens in the workspace."""
        client = self._client(seen)
        if seen.workspace_problem:
            return NodeUpdate(work.path, work.attempt, ended=steps.failed_record(work.record, seen.workspace_problem))
        if client is None:
            return _waiting_update(work, run_snapshot.WAITS_FOR_MACHINE)
        if work.kind == "agent":
            return await _prompt_with_files(client, work)
        return await self._poll_job(lease, client, work)

    async def _poll_job(self, lease: RunLease, client: AgentctlClient, work: NodeWork) -> NodeUpdate | None:
        if not work.job_id:
            return None  # the step that gives it one is on its way
        told = await node_work.start_or_poll_job(client, work.job_id, work.record.request, is_confirmed=work.is_asked)
        crash_points.reached("workflow.job_asked")
        if told.result is not None:
            return await self._ended(lease, work, told.result)
        if not told.is_confirmed:
            return _waiting_update(work, run_snapshot.WAITS_FOR_MACHINE)
        changes = {"waiting_for": ""} if work.waiting_for else {}
        changes |= {"output_tail": told.tail} if told.tail != work.output_tail else {}
        is_news = bool(changes) or not work.is_asked
        return NodeUpdate(work.path, work.attempt, is_confirmed=True, changes=changes) if is_news else None

    async def _ended(self, lease: RunLease, work: NodeWork, result: dict[str, Any]) -> NodeUpdate:
        """What the node's type makes of what came of its work; texts are looked through in the limited process."""
        try:
            graph = await self._graph(lease)
            record = await asyncio.to_thread(complete_record, graph, work.record, result, sandbox.run_in_sandbox)
        except ChecksUnavailable:
            raise  # which says nothing of the node
        except Exception as error:  # a node that nobody can look through is a failure, not a run that stands still
            log.exception("run %s: %s could not be looked through", lease.run_id, work.path)
            record = steps.failed_record(
                work.record, f"what it gave could not be looked through: {type(error).__name__}"
            )
        return NodeUpdate(work.path, work.attempt, ended=record)

    async def _time_out(self, seen: RunSnapshot, work: NodeWork) -> NodeUpdate:
        client = self._client(seen)
        if client is not None and work.job_id:
            await node_work.cancel_job(client, work.job_id)
        error = f"it took longer than {work.record.request.get('timeout')} s and was ended"
        session = {"sessionId": work.session_id} if work.session_id else {}
        return NodeUpdate(
            work.path, work.attempt, ended=steps.failed_record(work.record, error, **session), is_late=True
        )


async def _prompt_with_files(client: AgentctlClient, work: NodeWork) -> NodeUpdate | None:
    try:
        prompt = await node_work.prompt_with_files(client, work.record.request)
    except node_work.PromptFileUnreadable as error:
        return NodeUpdate(work.path, work.attempt, ended=steps.failed_record(work.record, str(error)))
    if prompt is None:
        return _waiting_update(work, run_snapshot.WAITS_FOR_MACHINE)
    return NodeUpdate(work.path, work.attempt, prompt=prompt)


def _waiting_update(work: NodeWork, what: str) -> NodeUpdate | None:
    same = what == work.waiting_for
    return None if same else NodeUpdate(work.path, work.attempt, changes={"waiting_for": what})


def _load_run_text(lease: RunLease) -> WorkflowRun:
    return WorkflowRun.objects.only("text", "files").get(id=lease.run_id)


def _is_lane_busy(lane: SessionQueue) -> bool:
    return lane.task is not None and not lane.task.done()
