"""A leased execution whose journal streams into the database."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from django.db import InterfaceError, OperationalError

from executors_app import crash_points
from executors_app.agentctl.protocol import TURN_ENDS, JournalKind
from executors_app.backoff import Backoff
from executors_app.client import AgentctlClient
from executors_app.domain import ExecutionFacts
from executors_app.errors import ExecutorError
from sessions_app.domain import actor_context
from sessions_app.models import Lease, LeaseLost
from sessions_app.services.database_threads import DatabaseThread
from sessions_app.supervisor.database_outage import is_database_outage
from sessions_app.supervisor.ingest.writer import IngestResult, JournalWriter, buffer_frames, show_agentctl_trouble

log = logging.getLogger(__name__)
RECONNECT_PAUSE = 0.01
START_ANSWER_HEAD_START = 0.2
"""Seconds at most that the lines of an agent that is being started wait for the end of the start: not to hold it up."""
MAX_RECONNECTS = 5
"""How often a broken stream is tried again before the sweep looks at the execution."""


@dataclass
class ExecutionStream:
    """The stream of one execution: reads, writes, acknowledges; ends when agentctl or the lease does."""

    session_id: uuid.UUID
    facts: ExecutionFacts
    lease: Lease
    client: AgentctlClient
    writer: JournalWriter
    database: DatabaseThread
    on_change: Callable[[uuid.UUID], None]
    """Called after each commit: orders may be due."""
    on_end: Callable[[ExecutionStream], None]
    journal_epoch: str = ""
    """The journal that its agentctl has; the cursor below may still be in an earlier one."""
    epoch: str = ""
    seq: int = 0
    sent: set[str] = field(default_factory=set)
    """Prompts given over this stream; the journal says what became of them."""
    backoff: Backoff = field(default_factory=Backoff)
    """Between tries to give a prompt."""
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    observed_launch: str = ""
    """The launch of that agent: a start whose answer was lost is answered again."""
    observed_agent: bool = True
    """The agent lived when the execution was taken over."""
    agent_gone: bool = False
    has_new_snapshot: bool = False
    turn_ended: bool = False
    """Since somebody last asked."""
    has_started: bool = False
    """An agent was started through it."""
    trouble: str = ""
    """What keeps its agentctl from writing, as the last notice said."""
    stored_trouble: str = ""
    """What the session's row says of it."""
    ended: bool = False
    error: ExecutorError | None = None
    _progressed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _not_starting: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while somebody waits for the answer to a start, and writes what came of it."""
    _task: asyncio.Task[None] | None = None
    _trouble_task: asyncio.Task[None] | None = None
    """Tries to show a trouble, or its end, that could not be shown."""

    def __post_init__(self) -> None:
        self._not_starting.set()

    def start(self) -> None:
        """Begin to stream, in the background."""
        self._task = asyncio.create_task(self._run(), name=f"stream {self.session_id}")

    async def stop(self) -> None:
        """End the stream, keep the lease; a commit under way may still be made."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def wait_until_logged(self, epoch: str, seq: int, timeout: float) -> bool:
        """Wait until the log has line ``seq`` of the journal; False when the stream ended or time is up."""

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
            if not is_database_outage(error):  # which is said once for all
                log.exception("session %s: its stream failed", self.session_id)
        finally:
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
        events = self.client.events(self.seq, self.epoch)
        async with events as stream, aclosing(buffer_frames(stream)) as batches:
            self.connected.set()
            async for batch in batches:
                await self.handle_notices(line for line in batch if line.get("type") == "journal")
                lines = [line for line in batch if "kind" in line]
                if not lines:
                    continue
                await self._wait_for_start_answer()
                result = await self._write(lines)
                await stream.ack(result.seq)
                crash_points.reached("supervisor.ingest_acked", self.session_id)
                await self.handle_notices(())
                await self._notify_waiters()
                self.on_change(self.session_id)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """While an agent is being started."""
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
        """Show the trouble of agentctl, and its end; a turn that ended meanwhile has taken it away from the row."""
        for notice in notices:
            self.trouble = str(notice.get("trouble") or "")
        if not (self.trouble or self.stored_trouble):
            return
        reason = await self._store_trouble()
        if reason and (self._trouble_task is None or self._trouble_task.done()):
            health = self.trouble or "health"
            log.warning("session %s: its %s cannot be shown, trying again: %s", self.session_id, health, reason)
            self._trouble_task = asyncio.create_task(self._retry_storing_trouble(), name=f"health {self.session_id}")
        self.on_change(self.session_id)

    async def _store_trouble(self) -> str:
        """Write the trouble into the row; returns what is in the way of it now, or the empty text."""
        trouble = self.trouble
        try:
            if not await self.database(show_agentctl_trouble, self.session_id, self.lease, trouble):
                return "its agent is starting"
        except (OperationalError, InterfaceError) as error:  # on one disk both are full: the stream must not end for it
            return str(error) or type(error).__name__
        self.stored_trouble = trouble
        return ""

    async def _retry_storing_trouble(self) -> None:
        """Try again after growing pauses: agentctl does not repeat a notice, and a calm agent is no other occasion."""
        backoff = Backoff()
        with suppress(LeaseLost):  # then the next supervisor shows what agentctl reports
            while not self.ended:
                await asyncio.sleep(backoff.record_failure())
                if not await self._store_trouble():
                    self.on_change(self.session_id)
                    return

    async def _write(self, lines: Sequence[Mapping[str, Any]]) -> IngestResult:
        token = None
        if any(line["kind"] == JournalKind.SESSION_IDENTIFIED for line in lines):
            token = await self.client.agent_session()
        result = await self.writer(self.session_id, self.lease, lines, token)
        self.epoch, self.seq = result.epoch, result.seq
        self.agent_gone = self.agent_gone or result.agent_gone
        kinds = {line["kind"] for line in lines}
        self.has_new_snapshot = self.has_new_snapshot or JournalKind.WORKSPACE_SNAPSHOT in kinds
        self.turn_ended = self.turn_ended or not TURN_ENDS.isdisjoint(kinds)
        return result

    async def _notify_waiters(self) -> None:
        async with self._progressed:
            self._progressed.notify_all()
