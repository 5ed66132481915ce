"""The stream of one leased execution: its journal is read, written into the log, and acknowledged."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from django.db import InterfaceError, OperationalError

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.backoff import Backoff
from executors_app.machine import crash_points
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import ExecutionFacts
from executors_app.wire.protocol import JournalKind
from sessions_app.journal import news_of
from sessions_app.kernel import actor_context
from sessions_app.kernel.database_threads import DatabaseThread
from sessions_app.models import Lease, LeaseLost
from sessions_app.stream.ingest.batches import IngestResult, LineBuffer
from sessions_app.stream.ingest.writer import JournalWriter, show_agentctl_trouble
from sessions_app.stream.stream_news import News
from sessions_app.supervisor.database_outage import is_database_outage

log = logging.getLogger(__name__)
RECONNECT_PAUSE = 0.01
"""Seconds before the first reconnect; each further one waits twice as long."""
START_ANSWER_HEAD_START = 0.2
"""Maximum seconds that journal lines wait while an agent is being started, so that the start is written first."""
MAX_RECONNECTS = 5
"""How often a broken stream is opened before it ends and its session is rechecked."""


class SessionListener(Protocol):
    """Who acts on what streams, prompts and sweeps of one supervisor report. Nothing here waits or raises."""

    def handle_news(self, stream: ExecutionStream, news: Sequence[News]) -> None:
        """A stream has committed lines; ``news`` is not empty."""

    def handle_lost_stream(self, stream: ExecutionStream) -> None:
        """A stream has ended unexpectedly, or its agent has: the session has to be rechecked."""

    def wake_session(self, session_id: uuid.UUID) -> None:
        """Intents or prompts of a session may have become due."""

    def start_session(self, session_id: uuid.UUID, intent_id: uuid.UUID | None) -> None:
        """A sweep has ordered a start; ``intent_id`` names it, if it is new."""


@dataclass
class ExecutionStream:
    """The stream of one execution. It ends when agentctl stops answering or the lease is lost."""

    session_id: uuid.UUID
    facts: ExecutionFacts
    lease: Lease
    client: AgentctlClient
    writer: JournalWriter
    database: DatabaseThread
    listener: SessionListener
    """Gets what each commit means for others."""
    on_end: Callable[[ExecutionStream], None]
    """Called once, when the stream has ended."""
    journal_epoch: str = ""
    """The epoch of the journal that agentctl has now; the cursor below may still be in an earlier one."""
    epoch: str = ""
    seq: int = 0
    """With ``epoch``, the cursor: the last journal line that is in the log."""
    sent: set[str] = field(default_factory=set)
    """Message ids of the prompts sent over this stream; the journal brings their outcome."""
    steered: set[tuple[str, str]] = field(default_factory=set)
    """Message ids of the prompts that were handed over for a running turn, each with the id of that turn."""
    backoff: Backoff = field(default_factory=Backoff)
    """Back-off between attempts to send a prompt."""
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the stream is open, and also when it has ended."""
    observed_launch: str = ""
    """The launch id of the agent that was alive at the take-over; empty: none was."""
    observed_agent: bool = True
    """Whether an agent was alive at the take-over."""
    has_started: bool = False
    """Whether an agent was started through this stream."""
    trouble: str = ""
    """The code of what keeps agentctl from writing, from its last notice; empty: nothing."""
    stored_trouble: str = ""
    """The trouble that the session's row shows."""
    ended: bool = False
    error: ExecutorError | None = None
    began: float = field(default_factory=time.monotonic)
    _progressed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _not_starting: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared from the request of a start until its outcome is written."""
    _task: asyncio.Task[None] | None = None
    _trouble_task: asyncio.Task[None] | None = None
    """Retries to write a trouble, or its end, that could not be written."""

    def __post_init__(self) -> None:
        self._not_starting.set()

    @property
    def living_launch(self) -> str | None:
        """The launch id of the agent that was alive at the take-over; None if none was."""
        if self.observed_agent:
            return self.observed_launch
        return None

    @property
    def age(self) -> float:
        """Seconds since the stream began to read the journal."""
        return time.monotonic() - self.began

    def start(self) -> None:
        """Start to stream, in its own task."""
        self._task = asyncio.create_task(self._run(), name=f"stream {self.session_id}")

    async def stop(self) -> None:
        """End the stream and keep the lease; a commit that is under way may still happen."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def wait_until_logged(self, epoch: str, seq: int, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until the log has line ``seq`` of the journal; False if it does not get it."""

        def is_logged() -> bool:
            return self.ended or (self.epoch == epoch and self.seq >= seq)

        try:
            async with asyncio.timeout(timeout), self._progressed:
                await self._progressed.wait_for(is_logged)
        except TimeoutError:
            return False
        return not self.ended

    async def _run(self) -> None:
        context = {"session_id": self.session_id, "task_id": self.facts.task_id, "execution_id": self.facts.id}
        actor_context.begin_context(cause="journal", **context)
        try:
            await self._stream_with_retries()
        except LeaseLost:
            log.info("session %s: another supervisor has taken it over", self.session_id)
        except ExecutorError as error:
            self.error = error
            log.info("session %s: its stream ended: %s", self.session_id, error.message)
        except Exception as error:
            if not is_database_outage(error):  # an outage is logged once for all sessions
                log.exception("session %s: its stream failed", self.session_id)
        finally:
            # Set before the waiters are notified: those that wait for the connection or a line must see that it ended.
            self.ended = True
            self.connected.set()
            if self._trouble_task is not None:
                self._trouble_task.cancel()
            await asyncio.shield(self._notify_waiters())
            self.on_end(self)

    async def _stream_with_retries(self) -> None:
        for attempt in range(MAX_RECONNECTS):
            before = self.seq
            try:
                await self._stream()
            except ExecutorError:
                if attempt == MAX_RECONNECTS - 1 or not self.connected.is_set():
                    raise
            if self.seq == before and not await self._is_answering():
                return
            await asyncio.sleep(RECONNECT_PAUSE * 2**attempt)

    async def _is_answering(self) -> bool:
        try:
            await self.client.status(timeout=2)
        except ExecutorError:
            return False
        return True

    async def _stream(self) -> None:
        async with AsyncExitStack() as stack:
            stream = await stack.enter_async_context(self.client.events(self.seq, self.epoch))
            buffer = LineBuffer(stream, lambda: stream.frame_size)
            batches = await stack.enter_async_context(aclosing(buffer.batches()))
            self.connected.set()
            async for batch in batches:
                await self.handle_notices(line for line in batch if line.get("type") == "journal")
                lines = [line for line in batch if "kind" in line]
                if not lines:
                    continue
                await self._wait_for_start_answer()
                # Acknowledged after the commit: agentctl may delete what is acknowledged. After a crash in between the
                # lines arrive again, and the cursor filters them out.
                result = await self._write(lines, buffer)
                news = news_of(lines, agent_gone=result.agent_gone)
                if news:
                    # Before anything can fail: these lines are committed and will not be read again.
                    self.listener.handle_news(self, news)
                await stream.ack(result.seq, now=bool(news))
                crash_points.reached("supervisor.ingest_acked", self.session_id)
                await self.handle_notices(())
                await self._notify_waiters()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Hold journal lines back briefly while the block starts an agent, so that its outcome is written first."""
        self.has_started = True
        self._not_starting.clear()
        try:
            yield
        finally:
            self._not_starting.set()

    async def _wait_for_start_answer(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(START_ANSWER_HEAD_START):
                await self._not_starting.wait()

    async def handle_notices(self, notices: Iterable[Mapping[str, Any]]) -> None:
        """Write agentctl's trouble, or its end, into the session's row.

        Called after each batch too, because a turn that has ended removes the trouble from the row.
        """
        for notice in notices:
            self.trouble = str(notice.get("trouble") or "")
        if not (self.trouble or self.stored_trouble):
            return
        reason = await self._store_trouble()
        if reason and (self._trouble_task is None or self._trouble_task.done()):
            health = self.trouble or "health"
            log.warning("session %s: its state %s cannot be stored, trying again: %s", self.session_id, health, reason)
            self._trouble_task = asyncio.create_task(self._retry_storing_trouble(), name=f"health {self.session_id}")
        self.listener.wake_session(self.session_id)

    async def _store_trouble(self) -> str:
        """Write the trouble into the row; return why that is not possible now, or an empty string."""
        trouble = self.trouble
        try:
            if not await self.database(show_agentctl_trouble, self.session_id, self.lease, trouble):
                return "its agent is starting"
        except (OperationalError, InterfaceError) as error:  # a full disk may be the database's too: do not end for it
            return str(error) or type(error).__name__
        self.stored_trouble = trouble
        return ""

    async def _retry_storing_trouble(self) -> None:
        """Retry with back-off: agentctl does not repeat a notice, and an idle agent sends no lines to retry after."""
        backoff = Backoff()
        with suppress(LeaseLost):  # the next supervisor then writes what agentctl reports
            while not self.ended:
                await asyncio.sleep(backoff.record_failure())
                if not await self._store_trouble():
                    self.listener.wake_session(self.session_id)
                    return

    async def _write(self, lines: list[dict[str, Any]], buffer: LineBuffer) -> IngestResult:
        token = None
        if any(line["kind"] == JournalKind.SESSION_IDENTIFIED for line in lines):
            token = await self.client.agent_session()
        result = await self.writer(self.session_id, self.lease, lines, token, buffer)
        self.epoch, self.seq = result.epoch, result.seq
        return result

    async def _notify_waiters(self) -> None:
        async with self._progressed:
            self._progressed.notify_all()
