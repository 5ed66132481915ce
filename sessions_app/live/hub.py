"""One reader of the log for all sockets of this process: it looks once, encodes once, and sends to everybody.

A look follows each wake-up, and the clock four times a second, so that a lost wake-up costs
latency, never an event. The next look begins when everybody was sent to: nothing queues up here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from time import monotonic
from typing import Final

from sessions_app.live.authentication import revoked_subscriptions
from sessions_app.live.log_reader import LogLine, SessionLog, load_changes
from sessions_app.live.subscriber import Subscriber
from sessions_app.models import wakeups
from sessions_app.services.database_threads import DatabaseThread

log = logging.getLogger(__name__)

POLL_EVERY: Final = 0.25
"""Seconds between two looks, whatever wake-ups come."""
RECHECK_AFTER: Final = 0.005
"""Seconds at least between two looks, however many wake-ups come."""
CHECK_EVERY: Final = 2.0
"""Seconds between two checks of everybody's access."""
RETRY: Final = 1.0
"""Seconds until the next look after one that failed."""
MAX_SUBSCRIPTIONS: Final = 64
"""Sockets and streams of one user in one process."""
YIELD_TIME: Final = 64
"""After so many sends others have their turn."""


class TooManySubscriptions(Exception):
    """The user has as many sockets open as one may have."""


class Hub:
    """Who follows what in this process; used on its event loop alone."""

    def __init__(self) -> None:
        self.subscribers: set[Subscriber] = set()
        self.database: DatabaseThread | None = None
        """The reader's own thread and connection, while anybody follows anything."""
        self._subscribers_by_target: defaultdict[uuid.UUID, set[Subscriber]] = defaultdict(set)
        """Who follows a session, and who a task, by its id."""
        self._cursors: dict[SessionLog, int] = {}
        """The last seq that was sent of each followed log; who was served last stands last."""
        self._version: str | None = None
        self._stale = True
        """The next look reads, whatever the database's version says."""
        self._checked_at = 0.0
        self._work: asyncio.Task[None] | None = None

    def join(self, subscriber: Subscriber, heads: Mapping[SessionLog, int]) -> None:
        """Register it; ``heads`` are the last seq of its logs, a moment ago. Raises TooManySeats."""
        if self.count_subscriptions(subscriber.subscription.principal.user_id) >= MAX_SUBSCRIPTIONS:
            raise TooManySubscriptions(TooManySubscriptions.__doc__)
        self.subscribers.add(subscriber)
        self._subscribers_by_target[_target_id(subscriber)].add(subscriber)
        if subscriber.subscription.session_id is None:  # what is known here and not to it was born a moment ago
            for followed in self._cursors:
                if followed.task_id == subscriber.subscription.task_id:
                    subscriber.sent.setdefault(followed, 0)
        self._follow_new_logs({followed: head for followed, head in heads.items() if followed not in self._cursors})
        self._stale = True  # what else was born a moment ago is looked for
        if self._work is None:
            self._work = asyncio.create_task(self._run(), name="hub")

    def start_feeding(self, subscriber: Subscriber) -> None:
        """Send it what it lacks, and from then on what is new; it has joined before, so that nothing is missed."""
        if subscriber in self.subscribers:
            subscriber.begin(lambda: self._is_caught_up(subscriber))

    def leave(self, subscriber: Subscriber) -> None:
        """Forget it; the last one ends the reader."""
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

    def count_subscriptions(self, user_id: int) -> int:
        """How many sockets and streams a user has here."""
        return sum(one.subscription.principal.user_id == user_id for one in self.subscribers.copy())

    def _followers(self, of: SessionLog) -> list[Subscriber]:
        return [*self._subscribers_by_target.get(of.session_id, ()), *self._subscribers_by_target.get(of.task_id, ())]

    def _is_caught_up(self, subscriber: Subscriber) -> bool:
        return all(self._cursors.get(followed, 0) <= seq for followed, seq in subscriber.sent.items())

    async def _run(self) -> None:
        """Look and send for ever; whatever fails is opened anew."""
        while True:
            try:
                await self._listen()
            except Exception:
                log.exception("sockets are not fed; trying again")
                self._stale = True
                await asyncio.sleep(RETRY)

    async def _listen(self) -> None:
        self.database = database = DatabaseThread("hub")
        self._checked_at = monotonic()
        try:
            with contextlib.closing(_WakeupListener()) as listener:
                while True:
                    await self._send_changes(database)
                    await self._disconnect_revoked(database)
                    await asyncio.sleep(RECHECK_AFTER)
                    await listener.wait()
        finally:
            # Whatever is cancelled here, the thread is told to end.
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, database.close))

    async def _send_changes(self, database: DatabaseThread) -> None:
        """Send all that is new, batch by batch."""
        more = True
        while more:
            known, self._stale = None if self._stale else self._version, False
            found = await database(load_changes, known, dict(self._cursors), self._tasks())
            self._version, more = found.version, found.more
            self._stale = self._stale or more
            self._follow_new_logs(dict.fromkeys(found.new_logs, 0))
            await self._deliver(found.lines)

    def _tasks(self) -> set[uuid.UUID]:
        return {one.subscription.task_id for one in self.subscribers if one.subscription.session_id is None}

    def _follow_new_logs(self, heads: Mapping[SessionLog, int]) -> None:
        """Read these logs too; who follows the task of one and has never heard of it gets it from its beginning."""
        for followed, head in heads.items():
            self._cursors.setdefault(followed, head)
            for one in self._subscribers_by_target.get(followed.task_id, ()):
                if followed not in one.sent:
                    one.sent[followed] = self._cursors[followed] = 0

    async def _deliver(self, lines: Sequence[LogLine]) -> None:
        """Send a batch to all who follow; who comes or goes meanwhile is told by ``live`` and seq."""
        for of, group in groupby(lines, key=lambda line: line.log):
            batch = list(group)
            if of not in self._cursors:
                continue
            self._cursors[of] = max(self._cursors.pop(of), batch[-1].seq)
            for number, subscriber in enumerate(self._followers(of), 1):
                await self._send_to(subscriber, of, batch)
                if number % YIELD_TIME == 0:
                    await asyncio.sleep(0)

    async def _send_to(self, subscriber: Subscriber, of: SessionLog, batch: Sequence[LogLine]) -> None:
        try:
            await subscriber.take(of, batch)
        except Exception:  # one broken connection is no reason to leave out the others
            log.exception("a client could not be sent to")
            self.leave(subscriber)

    async def _disconnect_revoked(self, database: DatabaseThread) -> None:
        """Cut off whoever has lost the right to be here."""
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
    """This process's ear for wake-ups."""

    def __init__(self) -> None:
        self._listener = wakeups.open_listener()

    async def wait(self) -> None:
        """Wait until somebody rings, or the clock does."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_EVERY):
                await asyncio.get_running_loop().sock_recv(self._listener, 16)
        with contextlib.suppress(BlockingIOError):
            while self._listener.recv(16):
                pass

    def close(self) -> None:
        """Hear no more."""
        wakeups.close_listener(self._listener)


_hubs: dict[asyncio.AbstractEventLoop, Hub] = {}


def get_hub() -> Hub:
    """The hub of the running event loop; a process that serves has one."""
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs.clear()  # those of loops that have ended
        _hubs[loop] = Hub()
    return _hubs[loop]


def has_too_many_subscriptions(user_id: int) -> bool:
    """Whether a user has as many sockets and streams as one may have; from any thread."""
    return any(one.count_subscriptions(user_id) >= MAX_SUBSCRIPTIONS for one in list(_hubs.values()))
