"""Drive workflow runs: read a run's state, query agentctl and the sandbox, write a step. Each run has a queue."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from functools import partial
from typing import Any, Final

from django.conf import settings
from django.utils import timezone

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.machine import crash_points
from sessions_app.kernel import actor_context
from sessions_app.kernel.database_threads import DatabaseThread
from sessions_app.kernel.services.errors import ChecksUnavailable
from sessions_app.models import LeaseLost
from sessions_app.supervisor.change_counter import REST
from sessions_app.supervisor.dispatcher import SessionQueue
from sessions_app.supervisor.execution_registry import STATEMENT_LIMIT, ExecutionRegistry
from sessions_app.supervisor.leases import is_shared_database
from sessions_app.workflows.driver import function_calls, jobs, leases, prompt_progress, run_snapshot, steps
from sessions_app.workflows.driver.leases import RunLease
from sessions_app.workflows.driver.run_snapshot import NodeWork, RunSnapshot
from sessions_app.workflows.driver.steps import NodeUpdate
from sessions_app.workflows.engine.transitions import complete_record
from sessions_app.workflows.language import sandbox
from sessions_app.workflows.language.diagnostics import InvalidWorkflow
from sessions_app.workflows.language.graph import WorkflowGraph
from sessions_app.workflows.models import WorkflowRun
from sessions_app.workflows.services.run_records import graph_of_run

log = logging.getLogger(__name__)
POLL_INTERVAL: Final = 0.5
"""Maximum seconds between two passes over the active runs."""
TAKE_OVER_INTERVAL: Final = 1.0
"""Seconds between two checks for runs of other drivers that have died."""


class WorkflowDriver:
    """Drives every run whose lease it can acquire. It keeps no state that is not in the database, except caches."""

    name = "workflows"

    def __init__(self, registry: ExecutionRegistry, *, database: DatabaseThread | None = None):
        self._registry = registry
        limit = settings.KANDEV_LEASE_TTL * STATEMENT_LIMIT
        self._database = database or DatabaseThread("workflows", limit=limit)
        self._queues: dict[uuid.UUID, SessionQueue] = {}
        self._leases: dict[uuid.UUID, RunLease] = {}
        self._graphs: dict[uuid.UUID, WorkflowGraph] = {}
        self._wakeup = asyncio.Event()

    def wake(self) -> None:
        """Start the next pass at once, because a turn has ended for which a run may be waiting."""
        if self._leases:
            self._wakeup.set()

    async def run_once(self) -> None:
        """Do one pass over the active runs, then wait until the next is due. The supervisor calls this repeatedly."""
        # Cleared before the pass: a turn that ends during the pass starts another one.
        self._wakeup.clear()
        seen_changes = self._registry.changes.count
        await self.drive_runs()
        if not self._leases:
            await asyncio.sleep(POLL_INTERVAL)
            # Another driver's lease expires without a change.
            longest = TAKE_OVER_INTERVAL if is_shared_database() else REST
            await self._registry.changes.rest(seen_changes, longest)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_INTERVAL):
                await self._wakeup.wait()

    async def drive_runs(self) -> None:
        """Acquire the leases of active runs, and wake the queue of each run."""
        found = await self._database(leases.acquire_leases, self._registry.boot_id)
        self._leases = {lease.run_id: lease for lease in found}
        self._graphs = {run_id: graph for run_id, graph in self._graphs.items() if run_id in self._leases}
        for run_id, queue in list(self._queues.items()):
            # A busy queue stays even if its lease is lost: beside it, a new one would drive the same run a second time.
            if run_id not in self._leases and not _is_queue_busy(queue):
                del self._queues[run_id]
        for run_id in self._leases:
            if run_id not in self._queues:
                self._queues[run_id] = SessionQueue(partial(self._advance_run, run_id), self._registry.outage)
            self._queues[run_id].wake()

    async def renew(self) -> None:
        """Renew the leases of all runs that this driver holds."""
        if self._leases:
            await self._database(leases.renew_leases, self._registry.boot_id)

    async def settle(self) -> None:
        """Wait until every queue is idle."""
        while busy := [task for task in self._tasks() if not task.done()]:
            await asyncio.wait(busy)

    async def close(self) -> None:
        """Stop the queues and release the leases. The next driver continues from the rows."""
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._database.run_at_shutdown(leases.release_leases, self._registry.boot_id)
        self._database.close()

    def _tasks(self) -> list[asyncio.Task[Any]]:
        return [queue.task for queue in self._queues.values() if queue.task is not None]

    async def _advance_run(self, run_id: uuid.UUID) -> None:
        """Do steps of a run while there is something to do at once."""
        lease = self._leases.get(run_id)
        if lease is None:
            return
        try:
            with actor_context.acting_as(cause="workflow"):
                snapshot: RunSnapshot | None = await self._database(run_snapshot.read_run_snapshot, lease)
                while snapshot is not None:
                    snapshot = await self._step(lease, snapshot)
        except LeaseLost:
            # Another driver has the run, or it is over. Nothing was written, and the rows have all that a driver needs.
            self._leases.pop(run_id, None)

    async def _step(self, lease: RunLease, snapshot: RunSnapshot) -> RunSnapshot | None:
        """Do one step; return the state after it if there is more to do at once."""
        if snapshot.must_end:
            # Scripts are ended before the run is: agentctl runs a script at most once, so after a crash between the
            # two the next driver finds them ended, while a run that is over would leave them running for good.
            await self._end_jobs(snapshot)
            return await self._database(steps.write_step, lease, [], timezone.now(), jobs_ended=True)
        checked = await asyncio.gather(*(self._check_work(lease, snapshot, work) for work in snapshot.work))
        updates = [update for update in checked if update is not None]
        if not updates and not snapshot.is_new and snapshot.work:
            return None
        with contextlib.suppress(InvalidWorkflow):  # write_step then ends the run
            await self._graph(lease)  # loaded here, so that no transaction waits for it
        graph, workspace = self._graphs.get(lease.run_id), snapshot.workspace
        return await self._database(steps.write_step, lease, updates, timezone.now(), graph=graph, workspace=workspace)

    async def _graph(self, lease: RunLease) -> WorkflowGraph:
        """Return the graph of a run, loaded once. Raises InvalidWorkflow, or ChecksUnavailable if a retry may help."""
        if lease.run_id not in self._graphs:
            run = await self._database(WorkflowRun.objects.only("text", "files", "team").get, id=lease.run_id)
            self._graphs[lease.run_id] = await function_calls.in_sandbox_thread(run.team_id, graph_of_run, run)
        return self._graphs[lease.run_id]

    async def _end_jobs(self, snapshot: RunSnapshot) -> None:
        client = self._client(snapshot)
        if client is not None:
            await asyncio.gather(*(jobs.cancel_job(client, work.job_id) for work in snapshot.work if work.job_id))
            crash_points.reached("workflow.jobs_ended")

    def _client(self, snapshot: RunSnapshot) -> AgentctlClient | None:
        if snapshot.workspace:
            return AgentctlClient.of(snapshot.workspace, self._registry.http)
        return None

    async def _check_work(self, lease: RunLease, snapshot: RunSnapshot, work: NodeWork) -> NodeUpdate | None:
        """Return what is new about the work of one node; None if nothing is."""
        if work.is_late(timezone.now()):
            return await self._time_out(snapshot, work)
        if work.kind == "function":
            result = await function_calls.call_function(snapshot.team_id, work.record.request)
            return await self._completed_update(lease, snapshot, work, result)
        if work.kind == "agent" and work.is_requested:
            if work.turn.result:
                return await self._completed_update(lease, snapshot, work, work.turn.result)
            return _waiting_update(work, work.turn.waiting_for)
        return await self._update_from_workspace(lease, snapshot, work)

    async def _update_from_workspace(self, lease: RunLease, snapshot: RunSnapshot, work: NodeWork) -> NodeUpdate | None:
        """Start or check work that needs the workspace."""
        client = self._client(snapshot)
        if snapshot.workspace_problem:
            return _failed_update(work, snapshot.workspace_problem)
        if client is None:
            return _waiting_update(work, prompt_progress.WAITS_FOR_MACHINE)
        if work.kind == "agent":
            return await _prompt_with_files(client, work)
        return await self._poll_job(lease, snapshot, client, work)

    async def _poll_job(
        self, lease: RunLease, snapshot: RunSnapshot, client: AgentctlClient, work: NodeWork
    ) -> NodeUpdate | None:
        if not work.job_id:
            return None  # The next step writes the id first: a script without a stored id could be started twice.
        status = await jobs.start_or_poll_job(client, work.job_id, work.record.request, is_confirmed=work.is_requested)
        crash_points.reached("workflow.job_asked")
        if status.result is not None:
            return await self._completed_update(lease, snapshot, work, status.result)
        if not status.is_confirmed:
            return _waiting_update(work, prompt_progress.WAITS_FOR_MACHINE)
        changes = {}
        if work.waiting_for:
            changes["waiting_for"] = ""
        if status.tail != work.output_tail:
            changes["output_tail"] = status.tail
        if not changes and work.is_requested:
            return None
        return NodeUpdate(work.path, work.attempt, is_confirmed=True, changes=changes)

    async def _completed_update(
        self, lease: RunLease, snapshot: RunSnapshot, work: NodeWork, result: dict[str, Any]
    ) -> NodeUpdate:
        """Return the update with the record that the node type makes of a result.

        The sandbox applies the patterns and schemas that users wrote.
        """
        try:
            graph = await self._graph(lease)
            record = await function_calls.in_sandbox_thread(
                snapshot.team_id, complete_record, graph, work.record, result, sandbox.run_in_sandbox
            )
        except ChecksUnavailable:
            raise  # the text cannot be loaded now, which is not the node's fault
        except Exception as error:
            # A result that cannot be evaluated fails its node; otherwise the run would stay stuck.
            log.exception("run %s: the result of %s could not be evaluated", lease.run_id, work.path)
            problem = f"its result could not be evaluated ({type(error).__name__}); the server log has details"
            record = steps.failed_record(work.record, problem)
        return NodeUpdate(work.path, work.attempt, ended=record)

    async def _time_out(self, snapshot: RunSnapshot, work: NodeWork) -> NodeUpdate:
        client = self._client(snapshot)
        # Stopped before the failure is stored: after a crash in between, the next driver stops it again. In the other
        # order, a script of a failed node could continue to run.
        if client is not None and work.job_id:
            await jobs.cancel_job(client, work.job_id)
        error = f"it took longer than {work.record.request.get('timeout')} s and was stopped"
        if work.session_id:
            failed = steps.failed_record(work.record, error, sessionId=work.session_id)
        else:
            failed = steps.failed_record(work.record, error)
        return NodeUpdate(work.path, work.attempt, ended=failed, is_late=True)


async def _prompt_with_files(client: AgentctlClient, work: NodeWork) -> NodeUpdate | None:
    try:
        prompt = await jobs.prompt_with_files(client, work.record.request)
    except jobs.PromptFileUnreadable as error:
        return NodeUpdate(work.path, work.attempt, ended=steps.failed_record(work.record, str(error)))
    if prompt is None:
        return _waiting_update(work, prompt_progress.WAITS_FOR_MACHINE)
    return NodeUpdate(work.path, work.attempt, prompt=prompt)


def _failed_update(work: NodeWork, error: str) -> NodeUpdate:
    return NodeUpdate(work.path, work.attempt, ended=steps.failed_record(work.record, error))


def _waiting_update(work: NodeWork, waiting_for: str) -> NodeUpdate | None:
    if waiting_for == work.waiting_for:
        return None
    return NodeUpdate(work.path, work.attempt, changes={"waiting_for": waiting_for})


def _is_queue_busy(queue: SessionQueue) -> bool:
    return queue.task is not None and not queue.task.done()
