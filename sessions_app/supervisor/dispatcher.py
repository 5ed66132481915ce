"""Dispatch intents and prompts through two queues for each session.

One queue runs starts and prompts in order. The other runs the intents that overtake them: answer, cancel, stop, close.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import InterfaceError, OperationalError
from django.db.models import OuterRef, Q, Subquery

from executors_app.backoff import Backoff
from executors_app.machine import crash_points
from executors_app.models import ExecutorRunning
from executors_app.wire.agent_settings import REASON_LIMIT, clean_text
from executors_app.wire.errors import AgentctlRefused, AgentctlUnreachable, ExecutorError, StaleGeneration
from executors_app.wire.protocol import AGENT_TURN_PREFIX, Code
from sessions_app.agents.models import WAITING, agent_settings_of, settle_change
from sessions_app.kernel import actor_context
from sessions_app.kernel.rules.states import WAITING_PROMPT_STATES, PermissionState
from sessions_app.models import (
    OVERTAKING_KINDS,
    Intent,
    IntentKind,
    Lease,
    LeaseLost,
    Prompt,
    TaskSession,
    session_transaction,
)
from sessions_app.permissions.services import undelivered_content
from sessions_app.prompts.delivery import send_next_prompt
from sessions_app.prompts.steering import send_steered_prompts
from sessions_app.sessions.services.intents import due_intents
from sessions_app.starts import execution
from sessions_app.starts.outcomes import settle_intent, write_stopped
from sessions_app.supervisor import leases
from sessions_app.supervisor.database_outage import DatabaseOutage, is_database_outage
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.supervisor.executions import load_execution_facts
from sessions_app.turns.interruptions import end_cancelled_work

log = logging.getLogger(__name__)
_WITH_THE_NEXT_START = "next_start"
"""Outcome of an intent whose agent is gone: the change waits for the next start."""
_UNSUPPORTED_REASON = "This agent’s settings cannot be changed here."


async def execute_overtaking_intent(registry: ExecutionRegistry, intent: Intent) -> bool:
    """Carry out one overtaking intent; return False if it stays open for another try."""
    try:
        if intent.kind in (IntentKind.STOP, IntentKind.CLOSE):
            return await _stop_execution(registry, intent)
        if intent.kind == IntentKind.SETTING:
            return await _send_change(registry, intent)
        return await _send_command(registry, intent)
    except LeaseLost:
        return False
    except (OperationalError, InterfaceError) as error:  # the database is unavailable: the intent stays open
        log.warning("%s could not be carried out: %s", intent, error)
        return False
    except Exception:  # one bad session never stops the others
        log.exception("%s could not be carried out", intent)
        await registry.database(settle_intent, intent.id, "internal_error")
        return True


async def _send_command(registry: ExecutionRegistry, intent: Intent) -> bool:
    """Send an answer or a cancel to agentctl; return False if it stays open for another try.

    The outcome arrives through the journal. After a crash between the command and ``settle_intent`` the command is
    sent again: agentctl remembers what it names, so repeating it changes nothing (rule 10).
    """
    stream = registry.stream_of(intent.session_id)
    if stream is None:
        pointless = await registry.database(_reason_pointless, intent)
        if pointless:
            await registry.database(settle_intent, intent.id, "too_late")
        return pointless
    try:
        if intent.kind == IntentKind.ANSWER:
            content = await registry.database(_load_content, intent)
            await stream.client.answer(intent.payload["permission_id"], intent.payload["option_id"], content)
            crash_points.reached("supervisor.answer_sent", intent.session_id)
        else:
            await _send_cancel(registry, stream, intent)
    except (AgentctlUnreachable, StaleGeneration):
        return False
    except AgentctlRefused as error:
        await registry.database(settle_intent, intent.id, error.refusal)
        return True
    await registry.database(settle_intent, intent.id, "done")
    return True


async def _send_cancel(registry: ExecutionRegistry, stream: ExecutionStream, intent: Intent) -> None:
    """Pass a cancel on; a turn that the agent began has no answer that ends it, so it is ended here."""
    message_id = intent.payload["message_id"]
    await stream.client.cancel(message_id, str(intent.id))
    crash_points.reached("supervisor.cancel_sent", intent.session_id)
    if message_id.startswith(AGENT_TURN_PREFIX):
        await registry.database(end_cancelled_work, intent.session_id, stream.lease, message_id)


def _load_content(intent: Intent) -> Mapping[str, Any]:
    """Return the content of an accepted form; empty for any other answer."""
    request = intent.session.permissions.filter(id=intent.payload["permission_id"]).first()
    if request is None:
        return {}
    return undelivered_content(request)


def _reason_pointless(intent: Intent) -> bool:
    """Whether the permission request or the turn that the intent names is no longer open."""
    if intent.kind == IntentKind.ANSWER:
        permissions = intent.session.permissions.filter(id=intent.payload.get("permission_id"))
        return not permissions.filter(state=PermissionState.PENDING).exists()
    run = intent.session.runs.filter(message_id=intent.payload.get("message_id"))
    return not run.filter(state__in=("running", "waiting")).exists()


async def _send_change(registry: ExecutionRegistry, intent: Intent) -> bool:
    """Send a change to the agent; return False if it stays open for another try. Its outcome is a journal line.

    agentctl knows a change by its id, so sending it again after a crash changes nothing.
    """
    stream = registry.stream_of(intent.session_id)
    outcome = await registry.database(outcome_without_sending, intent, stream is None)
    if outcome is None and stream is not None:
        change = intent.payload
        try:
            await stream.client.change_setting(change["change_id"], change["setting"], change["value"])
            crash_points.reached("supervisor.setting_sent", intent.session_id)
            outcome = "done"
        except (AgentctlUnreachable, StaleGeneration):
            return False
        except AgentctlRefused as error:
            outcome = await registry.database(handle_refusal, intent, error)
    if outcome is None:
        return False
    await registry.database(settle_intent, intent.id, outcome)
    registry.listener.wake_session(intent.session_id)  # a prompt may have waited for it
    return True


def outcome_without_sending(intent: Intent, is_detached: bool) -> str | None:
    """Return the outcome of an intent that need not be sent; None if it must be."""
    session = TaskSession.objects.get(id=intent.session_id)
    row = agent_settings_of(session)
    change = {} if row is None else row.change_of(intent.payload["setting"])
    if change.get("id") != intent.payload["change_id"] or change.get("state") != WAITING:
        return "superseded"
    if is_detached and not session.launch_id:
        return _WITH_THE_NEXT_START
    return None


def handle_refusal(intent: Intent, error: AgentctlRefused) -> str:
    """Return the outcome after agentctl refused to pass a change on; without an agent, its next start applies it."""
    if error.refusal == Code.NOT_RUNNING:
        return _WITH_THE_NEXT_START
    known = error.refusal in (Code.NOT_FOUND, Code.SETTINGS_UNSUPPORTED)
    reason = _UNSUPPORTED_REASON if known else clean_text(error.message, REASON_LIMIT)
    with session_transaction(intent.session_id) as transaction:
        row = agent_settings_of(transaction.session)
        about = (intent.payload["setting"], intent.payload["change_id"])
        code = Code.SETTINGS_UNSUPPORTED if known else error.refusal
        if row is not None and settle_change(transaction, row, *about, code=code, reason=reason):
            row.save(update_fields=["chosen", "updated_at"])
    return str(error.refusal)


async def _stop_execution(registry: ExecutionRegistry, intent: Intent) -> bool:
    """Carry out a stop or a close; return False if it stays open for another try.

    agentctl is first requested to end itself; what then still runs is ended by the runtime, after proof that it
    belongs to the execution. What a start launches meanwhile is ended by that start.
    """
    lease = await registry.database(_acquire_lease, intent.session_id, registry.boot_id)
    if lease is None:
        return False
    facts = await registry.database(load_execution_facts, intent.session_id)
    transcript: Mapping[str, Any] | None = None
    if facts is not None and facts.agentctl_url:
        transcript = await _request_shutdown(registry, intent)
        crash_points.reached("supervisor.stop_sent", intent.session_id)
        # Closed before the end, so that the loss of the stream requests no recheck of a session that we end ourselves.
        await registry.close_stream(intent.session_id)
    if facts is not None:
        if not await execution.end_execution(facts):
            return False
        crash_points.reached("supervisor.execution_ended", intent.session_id)
    # Order matters: end, write, settle, release. Until the intent is settled, a crash makes the next lease holder
    # repeat the whole stop, and every step may be repeated. The lease goes last: no start may come before.
    close_as: str = intent.payload.get("as", "")
    reason = "closed" if close_as else str(intent.payload.get("reason") or "stopped")
    if not intent.payload.get("delete_transcript"):
        transcript = None
    elif transcript is None:
        transcript = {"deleted": False, "reason": "the agent was not running, or did not report it"}
    await registry.database(write_stopped, intent.session_id, lease, reason, close_as, transcript)
    crash_points.reached("supervisor.stop_written", intent.session_id)
    await registry.database(settle_intent, intent.id, reason)
    crash_points.reached("supervisor.stop_settled", intent.session_id)
    if facts is not None:
        await registry.database(leases.release_leases, registry.boot_id, uuid.UUID(facts.id))
    registry.listener.wake_session(intent.session_id)  # a start may have waited for this end
    return True


async def _request_shutdown(registry: ExecutionRegistry, intent: Intent) -> Mapping[str, Any] | None:
    """Request agentctl to end its agent and then itself, once the log has the journal's last lines.

    Returns what happened to the agent's transcript; None if that is unknown, or if no deletion was requested.

    An agentctl that does not answer is only logged: the caller ends it through its runtime.
    """
    stream: Any = registry.stream_of(intent.session_id)
    transcript: Mapping[str, Any] | None = None
    try:
        stream = stream or await registry.open_stream(intent.session_id)
        if stream is None:
            return None
        delete = bool(intent.payload.get("delete_transcript"))
        answer = await stream.client.stop_agent(grace=5, intent_id=str(intent.id), delete_transcript=delete)
        transcript = answer.get("transcript")
        crash_points.reached("supervisor.agent_stopped", intent.session_id)
        report = await stream.client.status()
        await stream.wait_until_logged(report["journal"]["epoch"], report["journal"]["last_seq"], timeout=5)
        await stream.client.shutdown(stop_agent=True, intent_id=str(intent.id))
    except ExecutorError as error:
        log.info("session %s: its agentctl did not end itself: %s", intent.session_id, error.message)
    return transcript


def _acquire_lease(session_id: uuid.UUID, boot_id: str) -> Lease | None:
    execution = ExecutorRunning.objects.filter(session_id=session_id).order_by("-created_at").first()
    if execution:
        return leases.acquire_lease(execution.id, boot_id)
    return None


@dataclass(slots=True)
class PendingWork:
    """The open work of one session."""

    overtakes: bool = False
    """Whether an open intent overtakes starts and prompts."""
    ends: bool = False
    """Whether a stop or a close is open."""
    start: uuid.UUID | None = None
    """The start intent to run next, as ``next_start_intent`` finds it; None while a stop or close is open."""

    def add_intent(self, intent_id: uuid.UUID, kind: str) -> None:
        """Add an open intent of the session."""
        self.overtakes = self.overtakes or kind in OVERTAKING_KINDS
        self.ends = self.ends or kind in (IntentKind.STOP, IntentKind.CLOSE)
        if kind == IntentKind.START and self.start is None:
            self.start = intent_id
        if self.ends:
            self.start = None


def load_pending_sessions(boot_id: str) -> dict[uuid.UUID, PendingWork]:
    """Return the open work of every session with an open intent or an undelivered prompt, by session.

    Sessions that another supervisor holds are left out. The number of queries is constant.
    """
    prompts = Prompt.objects.filter(state__in=WAITING_PROMPT_STATES).order_by()
    found = {session_id: PendingWork() for session_id in prompts.values_list("session_id", flat=True)}
    # By a subquery for each open intent: with a join, a database may begin with all sessions.
    tries = TaskSession.objects.filter(id=OuterRef("session_id")).values("next_restart_at")
    intents = Intent.objects.filter(done_at=None).annotate(next_try=Subquery(tries[:1]))
    intents = intents.filter(due_intents("next_try") | ~Q(kind=IntentKind.START))
    for session_id, intent_id, kind in intents.values_list("session_id", "id", "kind"):
        found.setdefault(session_id, PendingWork()).add_intent(intent_id, kind)
    owners = ExecutorRunning.objects.filter(session_id__in=found).exclude(owner__in=("", boot_id))
    leased_by_another = leases.leased_by_others(owners.values_list("session_id", "owner", "lease_expires_at"), boot_id)
    return {session_id: work for session_id, work in found.items() if session_id not in leased_by_another}


def next_overtaking_intent(session_id: uuid.UUID) -> Intent | None:
    """Return the next open intent that overtakes: by the order of ``OVERTAKING_KINDS``, then the oldest."""
    rows = list(
        Intent.objects.filter(session_id=session_id, done_at=None, kind__in=OVERTAKING_KINDS).select_related("session")
    )
    return min(rows, key=lambda row: (OVERTAKING_KINDS.index(IntentKind(row.kind)), row.created_at), default=None)


def next_start_intent(session_id: uuid.UUID) -> uuid.UUID | None:
    """Return the session's open start intent; None if its next try is not due, or a stop or close has to end first."""
    ends = Q(kind__in=(IntentKind.STOP, IntentKind.CLOSE))
    rows = Intent.objects.filter(ends | due_intents() & Q(kind=IntentKind.START), session_id=session_id, done_at=None)
    found = list(rows.values_list("id", "kind"))
    if any(kind != IntentKind.START for _, kind in found):
        return None
    return next((key for key, _ in found), None)


class SessionQueue:
    """Does the work that is due; ``wake`` makes it look for more.

    Work that fails is retried with back-off. During a database outage the queue waits for ``outage`` instead.
    """

    def __init__(self, do_work: Callable[[], Awaitable[None]], outage: DatabaseOutage | None = None):
        self._do_work, self._outage = do_work, outage
        self._wake_requested = False
        self._backoff = Backoff()
        self.task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether ``wake`` would do the work at once."""
        return not self._backoff.is_waiting and (self.task is None or self.task.done())

    def wake(self) -> None:
        """Do the work again, now or when the current run or the back-off ends."""
        self._wake_requested = True
        if self.is_idle:
            self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        actor_context.begin_context(cause="order")
        while self._wake_requested:
            # Cleared before the rows are read: a wake-up during the work sets it again, and none is lost.
            self._wake_requested = False
            try:
                await self._do_work()
                self._backoff.reset()
            except Exception as error:  # if the queue ended here, the session's intents would never run again
                if self._outage is not None and is_database_outage(error):
                    await self._outage.wait(error)
                    self._wake_requested = True
                    continue
                log.exception("an intent queue failed")
                asyncio.get_running_loop().call_later(self._backoff.record_failure(), self.wake)
                return


class Dispatcher:
    """The queues of all sessions of one supervisor."""

    def __init__(self, registry: ExecutionRegistry):
        self.registry = registry
        self._queues: dict[uuid.UUID, tuple[SessionQueue, SessionQueue]] = {}
        self._starts: dict[uuid.UUID, uuid.UUID] = {}
        """Start intents that were read while their queue was idle, so that it need not query for them again."""
        self._has_work = asyncio.Event()

    def announce_work(self) -> None:
        """Let ``dispatch_pending`` read the rows again: intents or prompts may have become due."""
        self._has_work.set()

    async def dispatch_pending(self) -> None:
        """Wake the queues of every session that has open work, and wait until more is announced."""
        # Cleared before the rows are read: what is written during the read sets it again, and is read next time.
        self._has_work.clear()
        await self.wake_pending()
        await self._has_work.wait()

    def wake(self, session_id: uuid.UUID, *, overtakes: bool = True, start: uuid.UUID | None = None) -> None:
        """Run a session's open work; pass ``overtakes=False`` if no open intent overtakes.

        ``start`` is the session's next start intent, if the caller has just read it.
        """
        if session_id not in self._queues:
            self._queues[session_id] = (
                SessionQueue(lambda: self._run_in_order(session_id), self.registry.outage),
                SessionQueue(lambda: self._run_overtaking(session_id), self.registry.outage),
            )
        in_order, overtaking = self._queues[session_id]
        # A queue that is running may have settled this intent since it was read.
        if start is not None and in_order.is_idle:
            self._starts[session_id] = start
        in_order.wake()
        if overtakes:
            overtaking.wake()

    async def wake_pending(self) -> None:
        """Wake the queues of every session that has open work."""
        found = await self.registry.database(load_pending_sessions, self.registry.boot_id)
        for session_id, work in found.items():
            self.wake(session_id, overtakes=work.overtakes, start=work.start)

    async def wait_until_idle(self) -> None:
        """Wait until no queue is running."""
        while running := [task for task in self._tasks() if not task.done()]:
            await asyncio.wait(running)

    async def close(self) -> None:
        """Cancel the queues; open intents and prompts stay in the rows for the next supervisor."""
        for task in (tasks := self._tasks()):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [queue.task for queues in self._queues.values() for queue in queues if queue.task is not None]

    async def _run_in_order(self, session_id: uuid.UUID) -> None:
        while await self._run_next_in_order(session_id):
            pass

    async def _run_next_in_order(self, session_id: uuid.UUID) -> bool:
        """Carry out the session's open start, or else send its next prompt; return whether more may be due."""
        intent_id = self._starts.pop(session_id, None) or await self.registry.database(next_start_intent, session_id)
        if intent_id is None:
            with actor_context.acting_as(session_id=session_id, cause="prompt"):
                await send_steered_prompts(self.registry, session_id)
                await send_next_prompt(self.registry, session_id)
            # The journal of the turn, or the back-off of the delivery, wakes this queue for the next prompt.
            return False
        with actor_context.acting_as(session_id=session_id, intent_id=intent_id, cause="start"):
            await execution.execute_start(self.registry, session_id, intent_id)
            self.registry.changes.record()
        return await self.registry.database(_is_intent_done, intent_id)

    async def _run_overtaking(self, session_id: uuid.UUID) -> None:
        while await self._run_next_overtaking(session_id):
            pass

    async def _run_next_overtaking(self, session_id: uuid.UUID) -> bool:
        """Carry out the next intent that overtakes; return whether it is done, so that another may be due."""
        intent = await self.registry.database(next_overtaking_intent, session_id)
        if intent is None:
            return False
        with actor_context.acting_as(session_id=session_id, intent_id=intent.id, cause=intent.kind):
            done = await execute_overtaking_intent(self.registry, intent)
            self.registry.changes.record()
            return done


def _is_intent_done(intent_id: uuid.UUID) -> bool:
    return Intent.objects.filter(id=intent_id, done_at__isnull=False).exists()
