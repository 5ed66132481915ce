"""Fan-out of session logs: one reader for all sockets of this process, and the clients that it sends to.

The hub reads after each wake-up, and four times a second in case one was lost: a lost wake-up costs latency, never an
event. Each line is read in one query for all clients, and encoded once. The next read begins when all clients were sent
to, so nothing queues up here. Each client has a window of unacknowledged lines; one that falls behind catches up from
the database on its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from time import monotonic
from typing import Any, Final

import orjson
from django.db import connection

from sessions_app.kernel import wakeups
from sessions_app.kernel.database_errors import classify_error
from sessions_app.kernel.database_threads import DatabaseThread, run_in_database
from sessions_app.models import TaskSession
from sessions_app.stream.live.authentication import CloseCode, Subscription, revoked_subscriptions

log = logging.getLogger(__name__)
LOG_BATCH_LINES: Final = 200
"""Lines of one log in one batch at most, so that a long log does not delay the others."""
BATCH_LINES: Final = 1000
"""Lines of one batch at most."""
BATCH_BYTES: Final = 1024 * 1024
"""Bytes of one batch; it ends with the line that reaches this size."""
MAX_UNACKED_EVENTS: Final = 5000
MAX_UNACKED_BYTES: Final = 8 * 1024 * 1024
ACK_TIMEOUT: Final = 5.0
"""Seconds within which a client with a full window has to acknowledge something."""
_MARKS: Final = 32
"""Number of marks by which a window is counted: more would be more precise and cost more memory."""

# ``seq`` has no gaps, so a range of numbers limits how many lines each log contributes.
_SQLITE: Final = """
SELECT e.session_id, e.seq, e.name, e.payload, e.at
FROM json_each(%s) AS w CROSS JOIN session_events AS e
WHERE e.session_id = w.key AND e.seq > w.value AND e.seq <= w.value + %s
ORDER BY w.id, e.seq LIMIT %s
"""
_POSTGRESQL: Final = """
SELECT e.session_id, e.seq, e.name, e.payload::text, e.at
FROM unnest(%s::uuid[], %s::bigint[]) WITH ORDINALITY AS w(id, after, place)
JOIN session_events AS e ON e.session_id = w.id AND e.seq > w.after AND e.seq <= w.after + %s
ORDER BY w.place, e.seq LIMIT %s
"""


@dataclass(frozen=True, slots=True)
class SessionLog:
    """Identifies the log of one session."""

    session_id: uuid.UUID
    task_id: uuid.UUID
    epoch: str

    @classmethod
    def of(cls, session: TaskSession) -> SessionLog:
        """Return the identity of a session's log."""
        return cls(session.id, session.task_id, session.epoch)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log, encoded once for all clients."""

    log: SessionLog
    seq: int
    text: str = field(repr=False)
    size: int
    """Size of the text in bytes."""


@dataclass(frozen=True, slots=True)
class LogChanges:
    """The result of one read for all subscribers."""

    version: str
    """The version of the database, to pass to the next ``load_changes``."""
    lines: list[LogLine] = field(default_factory=list)
    """By log, in the order of the cursors, then by seq."""
    new_logs: list[SessionLog] = field(default_factory=list)
    """Logs of watched tasks that have no cursor yet."""
    more: bool = False
    """Whether there may be more to read now."""


def load_changes(version: str | None, cursors: Mapping[SessionLog, int], tasks: Collection[uuid.UUID]) -> LogChanges:
    """Read the lines behind ``cursors`` and the new sessions of ``tasks``, if the database changed since ``version``.

    It takes at most three statements, however many clients follow. Always call it on the same thread, because a
    version belongs to its connection.
    """
    # Read first: a change that commits during the queries below gives the next call another version.
    now = wakeups.database_version()
    if now == version:
        return LogChanges(now)
    new_logs = _load_new_sessions(tasks, cursors)
    lines, more = load_lines_after({**cursors, **dict.fromkeys(new_logs, 0)})
    return LogChanges(now, lines, new_logs, more)


def load_lines_after(cursors: Mapping[SessionLog, int]) -> tuple[list[LogLine], bool]:
    """Return the lines behind each log's cursor, oldest first, and whether there may be more; one statement.

    Logs that come first in ``cursors`` are read first, which matters when the batch is full before the last one.
    """
    if not cursors:
        return [], False
    by_key = {_key(log): log for log in cursors}
    lines: list[LogLine] = []
    size = 0
    with connection.cursor() as cursor:
        cursor.execute(*_statement(cursors))
        for key, seq, name, payload, at in cursor:
            lines.append(_line(by_key[key], seq, name, payload, at))
            size += lines[-1].size
            if size >= BATCH_BYTES:
                break
    return lines, len(lines) >= LOG_BATCH_LINES or size >= BATCH_BYTES


def _statement(cursors: Mapping[SessionLog, int]) -> tuple[str, list[Any]]:
    if connection.vendor == "sqlite":
        places = orjson.dumps({_key(log): seq for log, seq in cursors.items()}).decode()
        return _SQLITE, [places, LOG_BATCH_LINES, BATCH_LINES]
    return _POSTGRESQL, [[log.session_id for log in cursors], list(cursors.values()), LOG_BATCH_LINES, BATCH_LINES]


def _key(log: SessionLog) -> Any:
    """Return a session's id as a raw query returns it."""
    if connection.vendor == "sqlite":
        return log.session_id.hex
    return log.session_id


def _line(log: SessionLog, seq: int, name: str, payload: str, at: datetime) -> LogLine:
    when = (at if at.tzinfo else at.replace(tzinfo=UTC)).isoformat()
    text = (
        f'{{"type":"event","event":{orjson.dumps(name).decode()},"seq":{seq},"epoch":"{log.epoch}",'
        f'"session_id":"{log.session_id}","task_id":"{log.task_id}","at":"{when}","payload":{payload}}}'
    )
    return LogLine(log, seq, text, len(text) if text.isascii() else len(text.encode()))


def _load_new_sessions(tasks: Collection[uuid.UUID], known: Mapping[SessionLog, int]) -> list[SessionLog]:
    if not tasks:
        return []
    rows = TaskSession.objects.filter(task_id__in=tasks).values_list("id", "task_id", "epoch")
    return [log for log in (SessionLog(*row) for row in rows) if log not in known]


@dataclass(frozen=True, slots=True)
class _Mark:
    """The totals that had been sent up to one line."""

    session_id: uuid.UUID
    seq: int
    events: int
    size: int


class AckWindow:
    """Counts what one client has not acknowledged. It keeps only totals at a few marks, not the lines."""

    def __init__(self) -> None:
        self._marks: deque[_Mark] = deque()
        self._events = self._size = 0
        self._acked_events = self._acked_size = 0
        self._acked = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be sent until the client acknowledges."""
        return (
            self._events - self._acked_events >= MAX_UNACKED_EVENTS
            or self._size - self._acked_size >= MAX_UNACKED_BYTES
        )

    def record_sent(self, session_id: uuid.UUID, seq: int, events: int, size: int) -> None:
        """Record that ``events`` lines of ``size`` bytes in all were sent, up to ``seq`` of a session's log."""
        self._events += events
        self._size += size
        if self._marks and self._can_merge_mark(self._marks[-1]):
            self._marks.pop()
        self._marks.append(_Mark(session_id, seq, self._events, self._size))

    def _can_merge_mark(self, mark: _Mark) -> bool:
        """Whether the last mark is so close to the one before it that a new mark can replace it."""
        events, size = self._acked_events, self._acked_size
        if len(self._marks) > 1:
            events, size = self._marks[-2].events, self._marks[-2].size
        return mark.events - events < MAX_UNACKED_EVENTS // _MARKS and mark.size - size < MAX_UNACKED_BYTES // _MARKS

    def ack(self, session_id: uuid.UUID, seq: int) -> None:
        """Record that the client has a session's log up to ``seq``, and with it everything that was sent earlier."""
        reached = [n for n, mark in enumerate(self._marks) if mark.session_id == session_id and mark.seq <= seq]
        if not reached:
            return
        for _ in range(reached[-1] + 1):
            mark = self._marks.popleft()
        self._acked_events, self._acked_size = mark.events, mark.size
        self._acked.set()

    async def wait_for_room(self, timeout: float = ACK_TIMEOUT) -> bool:
        """Wait until the window has room; return False if it has none within ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while self.is_full:
                    self._acked.clear()
                    await self._acked.wait()
        except TimeoutError:
            return False
        return True


class Subscriber(ABC):
    """One client of the hub.

    ``sent`` maps each log that it follows to the last seq that it was sent. ``is_live`` clients get every line from
    the hub; the others read from the database until they have caught up.
    """

    def __init__(self, subscription: Subscription, sent: Mapping[SessionLog, int]):
        self.subscription = subscription
        self.sent = dict(sent)
        self.window = AckWindow()
        self.is_live = False
        """Whether it has caught up, so that the hub sends it every new line."""
        self.is_closed = False
        """Whether it was disconnected; nothing more is sent."""
        self._is_caught_up: Callable[[], bool] = lambda: False
        self._catching_up: asyncio.Task[None] | None = None

    @abstractmethod
    async def transmit(self, lines: Sequence[LogLine]) -> None:
        """Send lines over the connection."""

    @abstractmethod
    async def close(self, code: CloseCode) -> None:
        """End the connection."""

    def begin(self, is_caught_up: Callable[[], bool]) -> None:
        """Catch up in the background, then be live; ``is_caught_up`` compares ``sent`` with the hub's cursors."""
        self._is_caught_up = is_caught_up
        self._start_catch_up()

    def stop_catching_up(self) -> None:
        """Stop reading from the database for this client."""
        if self._catching_up is not None:
            self._catching_up.cancel()

    async def disconnect(self, code: CloseCode) -> None:
        """Stop sending and close the connection; does nothing the second time."""
        if not self.is_closed:
            self.is_closed, self.is_live = True, False
            await self.close(code)

    async def take(self, of: SessionLog, lines: Sequence[LogLine]) -> None:
        """Send new lines of one log from the hub, except those that the client has already."""
        if not self.is_live:
            return
        known = self.sent.get(of, 0)
        await self._send(lines if lines[0].seq > known else [line for line in lines if line.seq > known])
        if self.window.is_full and self.is_live:
            self._start_catch_up()

    async def _send(self, lines: Sequence[LogLine]) -> None:
        if not lines or self.is_closed:
            return
        # Recorded before the first await: whoever sends to this client meanwhile must not send these lines again.
        for line in lines:
            self.sent[line.log] = line.seq
        last = lines[-1]
        self.window.record_sent(last.log.session_id, last.seq, len(lines), sum(line.size for line in lines))
        await self.transmit(lines)

    def _start_catch_up(self) -> None:
        self.is_live = False
        self._catching_up = asyncio.create_task(self._catch_up())

    async def _catch_up(self) -> None:
        """Send what the client lacks, page by page and no faster than it acknowledges, until it is live."""
        try:
            while await self.window.wait_for_room(ACK_TIMEOUT):
                lines, _ = await run_in_database(load_lines_after, dict(self.sent))
                await self._send(lines)
                # No await from here to the end: between the check and ``is_live`` the hub could move on and send a line
                # that this client would never get.
                if self._is_caught_up() and not self.window.is_full:
                    self.is_live = not self.is_closed
                    return
            await self.disconnect(CloseCode.SLOW)
        except Exception as error:
            log.exception("a client could not be sent the lines that it lacks")
            await self.disconnect(CloseCode.FAILED if classify_error(error) is None else CloseCode.UNREACHABLE)


async def _disconnect(subscriber: Subscriber, code: CloseCode) -> None:
    """End one connection; a failure is logged, and ends no other one's work."""
    try:
        await subscriber.disconnect(code)
    except Exception:
        log.exception("a client could not be disconnected")


POLL_EVERY: Final = 0.25
"""Maximum seconds between two reads, in case a wake-up was lost."""
LONGEST_PAUSE: Final = 0.005
"""Maximum seconds that the reader pauses after a read and its sends. It pauses as long as they took, so that however
many wake-ups arrive, half of the time is left for everything else."""
CHECK_EVERY: Final = 2.0
"""Seconds between two checks of all subscribers' access."""
READ_LIMIT: Final = 30.0
"""Seconds after which a read of all followed logs, or a check of access, executes no further statement."""
RETRY: Final = 1.0
"""Seconds until the next read after one that failed."""
MAX_SUBSCRIPTIONS: Final = 64
"""Sockets and streams that one user may have open in one process."""
YIELD_TIME: Final = 64
"""Number of sends after which other tasks of the event loop get their turn."""


class TooManySubscriptions(Exception):
    """The user has as many sockets open as one may have."""


class Hub:
    """The subscribers of this process, and the one reader that feeds them; used only on its event loop."""

    def __init__(self) -> None:
        self.subscribers: set[Subscriber] = set()
        self.database: DatabaseThread | None = None
        """The reader's own thread and connection, while there are subscribers."""
        self._subscribers_by_target: defaultdict[uuid.UUID, set[Subscriber]] = defaultdict(set)
        """Subscribers by the id of the session or task that they follow."""
        self._cursors: dict[SessionLog, int] = {}
        """The last seq that was sent of each followed log; the log that was served last comes last."""
        self._version: str | None = None
        self._stale = True
        """Whether the next read happens even if the database's version has not changed."""
        self._checked_at = 0.0
        self._work: asyncio.Task[None] | None = None
        self._ends_with: CloseCode | None = None
        """The code with which everybody is disconnected, because this process ends."""
        self._disconnecting: set[asyncio.Task[None]] = set()

    def join(self, subscriber: Subscriber, heads: Mapping[SessionLog, int]) -> None:
        """Register a subscriber; it is sent nothing before ``start_feeding``. Raises TooManySubscriptions.

        ``heads`` maps its logs to their last seq, as read a moment ago.
        """
        if self.count_subscriptions(subscriber.subscription.principal.user_id) >= MAX_SUBSCRIPTIONS:
            raise TooManySubscriptions(TooManySubscriptions.__doc__)
        self.subscribers.add(subscriber)
        self._subscribers_by_target[_target_id(subscriber)].add(subscriber)
        # A task's session that the hub follows and the subscriber does not know was created after its heads were read.
        if subscriber.subscription.session_id is None:
            for followed in self._cursors:
                if followed.task_id == subscriber.subscription.task_id:
                    subscriber.sent.setdefault(followed, 0)
        self._follow_new_logs({followed: head for followed, head in heads.items() if followed not in self._cursors})
        self._stale = True  # the version already covers lines and sessions that are newer than the heads
        if self._work is None:
            self._work = asyncio.create_task(self._run(), name="hub")

    def start_feeding(self, subscriber: Subscriber) -> None:
        """Send a subscriber what it lacks, and from then on every new line.

        It has joined before that, so no line falls between the two.
        """
        if subscriber not in self.subscribers:
            return
        if self._ends_with is None:
            subscriber.begin(lambda: self._is_caught_up(subscriber))
        else:
            task = asyncio.create_task(_disconnect(subscriber, self._ends_with))
            self._disconnecting.add(task)
            task.add_done_callback(self._disconnecting.discard)

    def leave(self, subscriber: Subscriber) -> None:
        """Remove a subscriber; when the last one leaves, the reader ends."""
        subscriber.stop_catching_up()
        if subscriber not in self.subscribers:
            return
        self.subscribers.discard(subscriber)
        subscribers = self._subscribers_by_target[_target_id(subscriber)]
        subscribers.discard(subscriber)
        if not subscribers:
            del self._subscribers_by_target[_target_id(subscriber)]
            for followed in subscriber.sent:
                if not self._followers(followed):
                    self._cursors.pop(followed, None)
        if not self.subscribers and self._work is not None:
            self._work.cancel()
            self._work = None

    async def disconnect_all(self, code: CloseCode) -> None:
        """End the connections of all subscribers, and of those that join later."""
        self._ends_with = code
        await asyncio.gather(*(_disconnect(subscriber, code) for subscriber in self.subscribers))

    def count_subscriptions(self, user_id: int) -> int:
        """Return how many sockets and streams a user has in this process."""
        return sum(one.subscription.principal.user_id == user_id for one in self.subscribers.copy())

    def _followers(self, of: SessionLog) -> list[Subscriber]:
        return [*self._subscribers_by_target.get(of.session_id, ()), *self._subscribers_by_target.get(of.task_id, ())]

    def _is_caught_up(self, subscriber: Subscriber) -> bool:
        return all(self._cursors.get(followed, 0) <= seq for followed, seq in subscriber.sent.items())

    async def _run(self) -> None:
        """Read and send until cancelled; after a failure, reopen everything."""
        while True:
            try:
                await self._listen()
            except Exception:
                log.exception("log lines could not be sent to sockets; trying again")
                self._stale = True
                await asyncio.sleep(RETRY)

    async def _listen(self) -> None:
        self.database = database = DatabaseThread("hub", limit=READ_LIMIT)
        self._checked_at = monotonic()
        try:
            with contextlib.closing(_WakeupListener()) as listener:
                while True:
                    began = monotonic()
                    await self._send_changes(database)
                    await self._disconnect_revoked(database)
                    await asyncio.sleep(min(monotonic() - began, LONGEST_PAUSE))
                    await listener.wait()
        finally:
            # Shielded: the thread has to end even if this task is cancelled again.
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, database.close))

    async def _send_changes(self, database: DatabaseThread) -> None:
        """Send everything new, batch by batch."""
        more = True
        while more:
            # Reset before the read: a subscriber that joins during it sets the mark again.
            known, self._stale = None if self._stale else self._version, False
            found = await database(load_changes, known, dict(self._cursors), self._tasks())
            self._version, more = found.version, found.more
            self._stale = self._stale or more
            self._follow_new_logs(dict.fromkeys(found.new_logs, 0))
            await self._deliver(found.lines)

    def _tasks(self) -> set[uuid.UUID]:
        return {one.subscription.task_id for one in self.subscribers if one.subscription.session_id is None}

    def _follow_new_logs(self, heads: Mapping[SessionLog, int]) -> None:
        """Follow more logs, from ``heads``; subscribers of their tasks that do not know a log get it from its start."""
        for followed, head in heads.items():
            self._cursors.setdefault(followed, head)
            for one in self._subscribers_by_target.get(followed.task_id, ()):
                if followed not in one.sent:
                    one.sent[followed] = self._cursors[followed] = 0

    async def _deliver(self, lines: Sequence[LogLine]) -> None:
        """Send a batch to all its followers; ``is_live`` and ``sent`` guard those that come or go meanwhile."""
        for of, group in groupby(lines, key=lambda line: line.log):
            batch = list(group)
            if of not in self._cursors:
                continue
            # Moved before the sends: a client that catches up meanwhile becomes live only with these lines. Removed and
            # added again, so that the log is last in the next read and others get their turn.
            self._cursors[of] = max(self._cursors.pop(of), batch[-1].seq)
            for number, subscriber in enumerate(self._followers(of), 1):
                await self._send_to(subscriber, of, batch)
                if number % YIELD_TIME == 0:
                    await asyncio.sleep(0)

    async def _send_to(self, subscriber: Subscriber, of: SessionLog, batch: Sequence[LogLine]) -> None:
        try:
            await subscriber.take(of, batch)
        except Exception:  # one broken connection must not keep lines from the others
            log.exception("log lines could not be sent to a client")
            self.leave(subscriber)

    async def _disconnect_revoked(self, database: DatabaseThread) -> None:
        """Disconnect every subscriber that has lost its access."""
        if monotonic() - self._checked_at < CHECK_EVERY:
            return
        self._checked_at = monotonic()
        refused = await database(revoked_subscriptions, {one.subscription for one in self.subscribers})
        for subscriber in [one for one in self.subscribers if one.subscription in refused]:
            await subscriber.disconnect(refused[subscriber.subscription])
            self.leave(subscriber)


def _target_id(subscriber: Subscriber) -> uuid.UUID:
    return subscriber.subscription.session_id or subscriber.subscription.task_id


class _WakeupListener:
    """The socket on which this process receives wake-ups."""

    def __init__(self) -> None:
        self._listener = wakeups.open_listener()

    async def wait(self) -> None:
        """Wait for a wake-up, at most ``POLL_EVERY`` seconds; then discard all that have arrived."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_EVERY):
                await asyncio.get_running_loop().sock_recv(self._listener, 16)
        with contextlib.suppress(BlockingIOError):
            while self._listener.recv(16):
                pass

    def close(self) -> None:
        """Close the socket."""
        wakeups.close_listener(self._listener)


_hubs: dict[asyncio.AbstractEventLoop, Hub] = {}


def get_hub() -> Hub:
    """Return the hub of the running event loop; a web process has one."""
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs.clear()  # hubs of loops that have ended
        _hubs[loop] = Hub()
    return _hubs[loop]


def has_too_many_subscriptions(user_id: int) -> bool:
    """Whether a user has the maximum of sockets and streams open; may be called from any thread."""
    return any(one.count_subscriptions(user_id) >= MAX_SUBSCRIPTIONS for one in list(_hubs.values()))
