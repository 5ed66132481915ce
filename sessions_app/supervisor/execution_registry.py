"""What one supervisor process holds: execution streams, database threads, limits on starts, the grace period.

Also here: reading the tail of an execution's log.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import aiohttp
from django.conf import settings
from django.db import DatabaseError

from executors_app.agentctl_client.client import AgentctlClient, open_connection_pool
from executors_app.backoff import PeerBackoff
from executors_app.machine import crash_points
from executors_app.models import ExecutorRunning
from executors_app.plugins import runtime
from executors_app.wire.errors import AgentctlUnreachable, ExecutorError, StaleGeneration
from executors_app.wire.executions import ExecutionFacts
from executors_app.wire.log_rate_limit import LOG_TEXT_LIMIT
from executors_app.wire.protocol import ALIVE_AGENT_STATES, JournalKind
from sessions_app.attention.rules import notices
from sessions_app.kernel.database_threads import BatchExecutor, DatabaseThread
from sessions_app.redaction.redactor import without_cut_word
from sessions_app.starts.admission import StartGate, StartSlots
from sessions_app.stream.ingest.writer import TROUBLE_MESSAGES, JournalWriter
from sessions_app.stream.stream_news import News
from sessions_app.supervisor import leases
from sessions_app.supervisor.change_counter import ChangeCounter
from sessions_app.supervisor.database_outage import DatabaseOutage
from sessions_app.supervisor.execution_stream import ExecutionStream, SessionListener
from sessions_app.supervisor.executions import load_execution_facts
from sessions_app.supervisor.leases import Takeover, TakeoverRequest, take_over_executions
from sessions_app.supervisor.place_threads import in_place_thread


class GracePeriod:
    """Exempts the first start of each session from the count of attempts for a while after the supervisor's start.

    Further starts of a session count: otherwise an agent that dies again and again would be restarted without a pause
    for as long as the grace period lasts.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._given: set[uuid.UUID] = set()

    def begin(self, seconds: float) -> None:
        """Begin the grace period now."""
        self._until = time.monotonic() + seconds

    def is_exempt(self, session_id: uuid.UUID) -> bool:
        """Whether the session's next start is not counted."""
        return session_id not in self._given and time.monotonic() < self._until

    def record_start(self, session_id: uuid.UUID) -> None:
        """Record that a start of the session was claimed: its next one counts."""
        self._given.add(session_id)


log = logging.getLogger(__name__)
STATEMENT_LIMIT = 0.6
"""Part of a lease's lifetime after which the database cancels a statement of a supervisor."""
ATTACH_TIMEOUT = 10.0
"""Seconds that a stream may take to open, and then its journal to be in the log."""


class IgnoreNews:
    """The listener of a registry that is used without a supervisor's loop."""

    def handle_news(self, stream: ExecutionStream, news: Sequence[News]) -> None:
        """Do nothing: the rows have everything, and the next supervisor reads them."""

    def handle_lost_stream(self, stream: ExecutionStream) -> None:
        """Do nothing: the next sweep finds the session."""

    def wake_session(self, session_id: uuid.UUID) -> None:
        """Do nothing: no queue runs here."""

    def start_session(self, session_id: uuid.UUID, intent_id: uuid.UUID | None) -> None:
        """Do nothing: the next supervisor carries the start out."""


class ExecutionRegistry:
    """Streams and threads of one supervisor process.

    It is only a cache: whether a lease is held is decided by the rows, in each transaction. ``listener`` acts on what
    happens here; without one, only the rows change.
    """

    def __init__(self, listener: SessionListener | None = None) -> None:
        self.boot_id = uuid.uuid4().hex
        self.listener: SessionListener = listener or IgnoreNews()
        # A statement that takes longer would let leases expire: they are renewed on the second of these threads.
        limit = settings.KANDEV_LEASE_TTL * STATEMENT_LIMIT
        self.writer = DatabaseThread("ingest", limit=limit)
        self.ingest = JournalWriter(self.writer)
        self.database = DatabaseThread("orders", limit=limit)
        self.outage = DatabaseOutage(self.database)
        self.changes = ChangeCounter()
        self._takeovers: BatchExecutor[TakeoverRequest, Takeover | None] = BatchExecutor(
            self.database, lambda wanted: take_over_executions(self.boot_id, wanted)
        )
        self.streams: dict[uuid.UUID, ExecutionStream] = {}
        self.start_slots = StartSlots()
        self.starts = StartGate(settings.KANDEV_START_CONCURRENCY, self.start_slots)
        self.grace = GracePeriod()
        self.reported_corruption: dict[uuid.UUID, str] = {}
        self.left_backoff = PeerBackoff(first=30.0, longest=600.0)
        """By execution: when what a dead agentctl left may be read again, because each attempt may take minutes."""
        self._http: aiohttp.ClientSession | None = None
        self._opening: dict[uuid.UUID, asyncio.Lock] = {}

    @property
    def http(self) -> aiohttp.ClientSession:
        """The connection pool for all agentctls."""
        if self._http is None:
            self._http = open_connection_pool()
        return self._http

    def stream_of(self, session_id: uuid.UUID) -> ExecutionStream | None:
        """Return the session's stream, or None if it has none or it has ended."""
        found = self.streams.get(session_id)
        if found is not None and not found.ended:
            return found
        return None

    async def open_stream(
        self, session_id: uuid.UUID, report: Mapping[str, Any] | None = None
    ) -> ExecutionStream | None:
        """Return the session's stream; without one, lease the execution and read its journal into the log first.

        ``report`` is agentctl's status, if the caller has it. Returns None if another supervisor holds the lease.
        Raises ExecutorError if agentctl does not answer. The take-over counts once agentctl has accepted the new
        generation, which it does when the stream opens (rule 17).
        """
        # One at a time for each session: a sweep and a start may want to attach at the same moment.
        async with self._opening.setdefault(session_id, asyncio.Lock()):
            found = self.stream_of(session_id)
            if found is None:
                try:
                    found = await self._take_over(session_id, report)
                except StaleGeneration:  # agentctl has seen a newer generation since the report: try again, once
                    found = await self._take_over(session_id, None)
            return found

    async def _take_over(self, session_id: uuid.UUID, report: Mapping[str, Any] | None) -> ExecutionStream | None:
        if report is None:
            facts = await self.database(load_execution_facts, session_id)
            if facts is None or not facts.agentctl_url:
                return None
            report = await AgentctlClient.of(facts, self.http).status(timeout=ATTACH_TIMEOUT)
        serves = report.get("capabilities", {}).get("supports_workspace_only")
        wanted = TakeoverRequest(session_id, int(report["generation"]), serves if isinstance(serves, bool) else None)
        taken = await self._takeovers(wanted)
        if taken is None:
            return None
        crash_points.reached("supervisor.leased", session_id)
        journal = report["journal"]
        stream = await self._stream(session_id, taken, journal["epoch"])
        crash_points.reached("supervisor.attached", session_id)
        await stream.handle_notices([journal])
        stream.observed_agent = report["agent"]["state"] in ALIVE_AGENT_STATES
        if stream.observed_agent:
            stream.observed_launch = str(report["agent"].get("launch_id") or "")
        else:
            stream.observed_launch = ""
        if journal["last_seq"] and not await stream.wait_until_logged(
            journal["epoch"], journal["last_seq"], ATTACH_TIMEOUT
        ):
            log.warning("session %s: its journal is not in the log yet", session_id)
        return stream

    async def _stream(self, session_id: uuid.UUID, taken: Takeover, journal_epoch: str) -> ExecutionStream:
        stream = ExecutionStream(
            session_id=session_id,
            facts=taken.facts,
            lease=taken.lease,
            client=AgentctlClient.of(taken.facts, self.http),
            writer=self.ingest,
            database=self.database,
            listener=self.listener,
            on_end=self._forget,
            journal_epoch=journal_epoch,
            epoch=taken.epoch,
            seq=taken.seq,
            stored_trouble=taken.error_code if taken.error_code in TROUBLE_MESSAGES else "",
        )
        await _open_stream(stream)
        self.streams[session_id] = stream
        return stream

    def _forget(self, stream: ExecutionStream) -> None:
        # A stream that was closed on purpose, or never registered, is not here: its end requests no recheck.
        if self.streams.get(stream.session_id) is stream:
            del self.streams[stream.session_id]
            self.listener.handle_lost_stream(stream)

    async def close_stream(self, session_id: uuid.UUID) -> None:
        """End the stream of a session without requesting a recheck; the lease stays."""
        stream = self.streams.pop(session_id, None)
        if stream is not None:
            await stream.stop()

    async def drain_starts(self) -> None:
        """Wait until the log has everything that the agents started here have written so far.

        Otherwise the next supervisor would find those lines and record a take-over without any new information.
        """
        started = [stream for stream in self.streams.values() if stream.has_started]
        await asyncio.gather(*map(_drain_stream, started))

    async def release_all(self) -> None:
        """End the streams, then release the leases. Agents keep running."""
        # In this order: after the release another supervisor may write, and our streams would only be refused.
        for session_id in list(self.streams):
            try:
                await self.close_stream(session_id)
            except Exception:  # the lease is released all the same
                log.exception("session %s: its stream could not be closed", session_id)
        await self.database.run_at_shutdown(leases.release_leases, self.boot_id)

    async def close(self) -> None:
        """Close connections and threads; without ``release_all`` before it, the leases last until they expire."""
        await self.outage.close()
        if self._http is not None:
            await self._http.close()
        await self.ingest.close()
        self.writer.close()
        self.database.close()


async def _open_stream(stream: ExecutionStream) -> None:
    """Start a stream and wait until it is open. Raises ExecutorError if it does not open.

    If anything prevents it, even a cancellation, the stream is stopped: it is not registered yet, so nothing else can.
    """
    stream.start()
    try:
        await asyncio.wait_for(stream.connected.wait(), ATTACH_TIMEOUT)
    except TimeoutError:
        raise AgentctlUnreachable("agentctl did not open its event stream in time.", reason="timeout") from None
    finally:
        if not stream.connected.is_set():
            await stream.stop()
    if stream.ended:
        raise stream.error or ExecutorError("The event stream of agentctl ended at once.")


async def _drain_stream(stream: ExecutionStream) -> None:
    """Wait until the log has this stream's journal; skip an agentctl that does not answer."""
    with suppress(ExecutorError):
        journal = (await stream.client.status(timeout=ATTACH_TIMEOUT))["journal"]
        await stream.wait_until_logged(journal["epoch"], journal["last_seq"], ATTACH_TIMEOUT)


TAIL_LINES: Final = 60
"""Lines of the agent's log that ``read_log_tail`` returns at most."""
LOOKBACK: Final = 2000
"""Journal lines before the cursor that are searched for them."""
READ_TIMEOUT: Final = 5.0


async def read_log_tail(registry: ExecutionRegistry, session_id: uuid.UUID) -> str:
    """Return the last log lines of a session's agents, without secrets; empty if they cannot be read in time."""
    try:
        facts = await registry.database(load_execution_facts, session_id)
        if facts is None:
            return ""
        seq, epoch = await registry.database(_cursor, facts.id)
        async with asyncio.timeout(READ_TIMEOUT):
            found = await in_place_thread(facts, _read, facts, max(seq - LOOKBACK, 0), epoch)
    except (ExecutorError, DatabaseError, OSError, ValueError, TimeoutError) as error:
        log.info("session %s: the end of its agent's log cannot be read: %s", session_id, error)
        return ""
    return await _without_secrets(found)


async def log_tail_of(lines: Iterable[Mapping[str, Any]]) -> str:
    """Return the last log lines among lines of a journal, without secrets."""
    return await _without_secrets(_log_texts(lines))


async def _without_secrets(tail: str) -> str:
    # Here, because what follows is a transaction, which must not search the whole of an agent's log for secrets.
    return await asyncio.to_thread(notices.tail, tail)


def _cursor(execution_id: str) -> tuple[int, str]:
    columns = ("journal_seq", "journal_epoch")
    found: tuple[int, str] = ExecutorRunning.objects.values_list(*columns).get(id=execution_id)
    return found


def _read(facts: ExecutionFacts, after: int, epoch: str) -> str:
    return _log_texts(runtime(facts.runtime).unread_journal(facts, after, epoch))


def _log_texts(lines: Iterable[Mapping[str, Any]]) -> str:
    texts = deque(
        (str(line.get("text", "")) for line in lines if line.get("kind") == JournalKind.LOG), maxlen=TAIL_LINES
    )
    # agentctl has cut a longer line, maybe within a secret.
    return "\n".join(without_cut_word(text) if len(text) >= LOG_TEXT_LIMIT else text for text in texts)
