"""Dispatch intents and prompts.

Two queues for each session, and the intents that overtake (answer, cancel, stop, close).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from django.db import InterfaceError, OperationalError
from django.db.models import Q

from executors_app import crash_points
from executors_app.backoff import Backoff
from executors_app.errors import AgentctlRefused, AgentctlUnreachable, ExecutorError, StaleGeneration
from executors_app.models import ExecutorRunning
from executors_app.plugins import runtime
from sessions_app.domain import actor_context
from sessions_app.domain.states import PermissionState, PromptState
from sessions_app.models import OVERTAKING_KINDS, Intent, IntentKind, Lease, LeaseLost, Prompt
from sessions_app.services.intents import due_intents
from sessions_app.supervisor import leases
from sessions_app.supervisor.database_outage import DatabaseOutage, is_database_outage
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.executions import load_execution_facts
from sessions_app.supervisor.outcomes import settle_intent, write_stopped
from sessions_app.supervisor.prompts import send_next_prompt
from sessions_app.supervisor.start import execution

log = logging.getLogger(__name__)


async def execute_overtaking_intent(registry: ExecutionRegistry, intent: Intent) -> bool:
    """Carry out one order; False when it has to wait for another try."""
    try:
        if intent.kind in (IntentKind.STOP, IntentKind.CLOSE):
            return await _stop_execution(registry, intent)
        return await _send_command(registry, intent)
    except LeaseLost:
        return False
    except (OperationalError, InterfaceError) as error:  # the database's trouble: the order stays, to be tried again
        log.warning("%s could not be carried out: %s", intent, error)
        return False
    except Exception:  # one bad session never stops the others
        log.exception("%s could not be carried out", intent)
        await registry.database(settle_intent, intent.id, "internal_error")
        return True


async def _send_command(registry: ExecutionRegistry, intent: Intent) -> bool:
    """An answer or a cancel: given to agentctl, which remembers it; its journal tells the rest."""
    stream = registry.stream_of(intent.session_id)
    if stream is None:
        pointless = await registry.database(_reason_pointless, intent)
        if pointless:
            await registry.database(settle_intent, intent.id, "too_late")
        return pointless
    try:
        if intent.kind == IntentKind.ANSWER:
            await stream.client.answer(intent.payload["permission_id"], intent.payload["option_id"])
            crash_points.reached("supervisor.answer_sent", intent.session_id)
        else:
            await stream.client.cancel(intent.payload["message_id"], str(intent.id))
            crash_points.reached("supervisor.cancel_sent", intent.session_id)
    except (AgentctlUnreachable, StaleGeneration):
        return False
    except AgentctlRefused as error:
        await registry.database(settle_intent, intent.id, error.refusal)
        return True
    await registry.database(settle_intent, intent.id, "done")
    return True


def _reason_pointless(intent: Intent) -> bool:
    """What the order is about has ended."""
    if intent.kind == IntentKind.ANSWER:
        permissions = intent.session.permissions.filter(id=intent.payload.get("permission_id"))
        return not permissions.filter(state=PermissionState.PENDING).exists()
    run = intent.session.runs.filter(message_id=intent.payload.get("message_id"))
    return not run.filter(state__in=("running", "waiting")).exists()


async def _stop_execution(registry: ExecutionRegistry, intent: Intent) -> bool:
    """End the execution: politely, and by proof of ownership where it is silent (rules, section 7)."""
    lease = await registry.database(_acquire_lease, intent.session_id, registry.boot_id)
    if lease is None:
        return False
    facts = await registry.database(load_execution_facts, intent.session_id)
    if facts is not None and facts.agentctl_url:
        await _request_shutdown(registry, intent)
        crash_points.reached("supervisor.stop_sent", intent.session_id)
        await registry.close_stream(intent.session_id)
        if not await runtime(facts.runtime).end(facts):
            log.warning("session %s: something of it could not be ended", intent.session_id)
            return False
        crash_points.reached("supervisor.execution_ended", intent.session_id)
    close_as: str = intent.payload.get("as", "")
    reason = "closed" if close_as else str(intent.payload.get("reason") or "stopped")
    await registry.database(write_stopped, intent.session_id, lease, reason, close_as)
    crash_points.reached("supervisor.stop_written", intent.session_id)
    await registry.database(settle_intent, intent.id, reason)
    crash_points.reached("supervisor.stop_settled", intent.session_id)
    if facts is not None:
        await registry.database(leases.release_leases, registry.boot_id, uuid.UUID(facts.id))
    registry.on_change(intent.session_id)  # a start may have waited for this end
    return True


async def _request_shutdown(registry: ExecutionRegistry, intent: Intent) -> None:
    """Let agentctl end its agent and itself; its last lines come over the stream first."""
    stream: Any = registry.stream_of(intent.session_id)
    try:
        stream = stream or await registry.open_stream(intent.session_id)
        if stream is None:
            return
        await stream.client.stop_agent(grace=5, intent_id=str(intent.id))
        crash_points.reached("supervisor.agent_stopped", intent.session_id)
        report = await stream.client.status()
        await stream.wait_until_logged(report["journal"]["epoch"], report["journal"]["last_seq"], timeout=5)
        await stream.client.shutdown(stop_agent=True, intent_id=str(intent.id))
    except ExecutorError as error:
        log.info("session %s does not end by itself: %s", intent.session_id, error.message)


def _acquire_lease(session_id: uuid.UUID, me: str) -> Lease | None:
    execution = ExecutorRunning.objects.filter(session_id=session_id).order_by("-created_at").first()
    return leases.acquire_lease(execution.id, me) if execution else None


@dataclass(slots=True)
class PendingWork:
    """What waits of one session."""

    overtakes: bool = False
    """An order of it overtakes."""
    ends: bool = False
    start: uuid.UUID | None = None
    """The start order that comes next, as ``next_start`` says."""

    def add_intent(self, intent_id: uuid.UUID, kind: str) -> None:
        """An open order of it, the oldest first."""
        self.overtakes = self.overtakes or kind in OVERTAKING_KINDS
        self.ends = self.ends or kind in (IntentKind.STOP, IntentKind.CLOSE)
        if kind == IntentKind.START and self.start is None:
            self.start = intent_id
        if self.ends:
            self.start = None


def load_pending_sessions(me: str) -> dict[uuid.UUID, PendingWork]:
    """Sessions with an open order or a prompt that is not at work yet, and that no other supervisor holds.

    A handful of queries, whatever the history.
    """
    prompts = Prompt.objects.filter(state__in=(PromptState.QUEUED, PromptState.SENDING)).order_by()
    found = {session_id: PendingWork() for session_id in prompts.values_list("session_id", flat=True)}
    intents = Intent.objects.filter(due_intents() | ~Q(kind=IntentKind.START), done_at=None)
    for session_id, intent_id, kind in intents.values_list("session_id", "id", "kind"):
        found.setdefault(session_id, PendingWork()).add_intent(intent_id, kind)
    owners = ExecutorRunning.objects.filter(session_id__in=found).exclude(owner__in=("", me))
    held = leases.leased_by_others(owners.values_list("session_id", "owner", "lease_expires_at"), me)
    return {session_id: work for session_id, work in found.items() if session_id not in held}


def next_overtaking_intent(session_id: uuid.UUID) -> Intent | None:
    """The oldest open order that overtakes, stops and closes first."""
    rows = list(
        Intent.objects.filter(session_id=session_id, done_at=None, kind__in=OVERTAKING_KINDS).select_related("session")
    )
    return min(rows, key=lambda row: (OVERTAKING_KINDS.index(IntentKind(row.kind)), row.created_at), default=None)


def next_start_intent(session_id: uuid.UUID) -> uuid.UUID | None:
    """The session's open start order, unless it waits for its time or for the end of what it had before."""
    ends = Q(kind__in=(IntentKind.STOP, IntentKind.CLOSE))
    rows = Intent.objects.filter(ends | due_intents() & Q(kind=IntentKind.START), session_id=session_id, done_at=None)
    found = list(rows.values_list("id", "kind"))
    return None if any(kind != IntentKind.START for _, kind in found) else next((key for key, _ in found), None)


class SessionQueue:
    """Runs one step after another until there is nothing to do; ``poke`` makes it look again.

    While the database is away it waits with everybody else for ``outage`` to be over.
    """

    def __init__(self, step: Callable[[], Awaitable[bool]], outage: DatabaseOutage | None = None):
        self._step, self._outage = step, outage
        self._wake_requested = False
        self._backoff = Backoff()
        self.task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """A poke makes it look at once."""
        return not self._backoff.is_waiting and (self.task is None or self.task.done())

    def wake(self) -> None:
        """There may be something to do."""
        self._wake_requested = True
        if self.is_idle:
            self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        actor_context.begin_context(cause="order")
        while self._wake_requested:
            self._wake_requested = False
            try:
                while await self._step():
                    pass
                self._backoff.reset()
            except Exception as error:  # a queue that has died would leave its session without anybody
                if self._outage is not None and is_database_outage(error):
                    await self._outage.wait(error)
                    self._wake_requested = True
                    continue
                log.exception("a queue of orders failed")
                asyncio.get_running_loop().call_later(self._backoff.record_failure(), self.wake)
                return


class Dispatcher:
    """The queues of all sessions of one supervisor."""

    def __init__(self, registry: ExecutionRegistry):
        self.registry = registry
        self._queues: dict[uuid.UUID, tuple[SessionQueue, SessionQueue]] = {}
        self._starts: dict[uuid.UUID, uuid.UUID] = {}
        """Start orders that were seen while their queue was free, so that it need not look for them again."""

    def wake(self, session_id: uuid.UUID, *, overtakes: bool = True, start: uuid.UUID | None = None) -> None:
        """Look at a session's orders; at those that overtake unless it is known that there is none.

        ``start`` is its start order as somebody has seen it just now.
        """
        if session_id not in self._queues:
            self._queues[session_id] = (
                SessionQueue(lambda: self._run_in_order(session_id), self.registry.outage),
                SessionQueue(lambda: self._run_overtaking(session_id), self.registry.outage),
            )
        in_order, overtaking = self._queues[session_id]
        if start is not None and in_order.is_idle:
            self._starts[session_id] = start
        in_order.wake()
        if overtakes:
            overtaking.wake()

    async def wake_pending(self) -> None:
        """Poke every session that has something to do."""
        found = await self.registry.database(load_pending_sessions, self.registry.boot_id)
        for session_id, work in found.items():
            self.wake(session_id, overtakes=work.overtakes, start=work.start)

    async def wait_until_idle(self) -> None:
        """Wait until every queue is at rest."""
        while running := [task for task in self._tasks() if not task.done()]:
            await asyncio.wait(running)

    async def close(self) -> None:
        """End the queues; what they were doing is in the rows."""
        for task in (tasks := self._tasks()):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [queue.task for queues in self._queues.values() for queue in queues if queue.task is not None]

    async def _run_in_order(self, session_id: uuid.UUID) -> bool:
        intent_id = self._starts.pop(session_id, None) or await self.registry.database(next_start_intent, session_id)
        if intent_id is None:
            with actor_context.acting_as(session_id=session_id, cause="prompt"):
                return await send_next_prompt(self.registry, session_id)
        with actor_context.acting_as(session_id=session_id, intent_id=intent_id, cause="start"):
            await execution.execute_start(self.registry, session_id, intent_id)
        return await self.registry.database(_is_intent_done, intent_id)

    async def _run_overtaking(self, session_id: uuid.UUID) -> bool:
        intent = await self.registry.database(next_overtaking_intent, session_id)
        if intent is None:
            return False
        with actor_context.acting_as(session_id=session_id, intent_id=intent.id, cause=intent.kind):
            return await execute_overtaking_intent(self.registry, intent)


def _is_intent_done(intent_id: uuid.UUID) -> bool:
    return Intent.objects.filter(id=intent_id, done_at__isnull=False).exists()
