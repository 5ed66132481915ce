"""Run database functions on dedicated threads: one for each supervisor job, a pool for sockets, and in batches.

A function whose cost one session determines must not hold up the others on its thread. A thread cannot be stopped in
the middle of a transaction, so there are two means: the database cancels statements after the thread's time limit, and
a session whose call took long waits before its next one (``SessionDelays``).
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar
from weakref import WeakValueDictionary

from django.db import Error, OperationalError, connection, connections

from sessions_app.kernel import actor_context
from sessions_app.kernel.database_errors import is_cancelled
from sessions_app.kernel.transactions import wait_briefly_for_locks
from sessions_app.metrics.counters import METRICS_BUFFER

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


FREE_SECONDS: Final = 0.1
"""Seconds of one call that delay nothing: the usual ones take a few milliseconds."""
DELAY_FACTOR: Final = 4.0
"""A session waits this many times as long as its last call took, so it uses a fifth of the thread at most."""
MAX_DELAY: Final = 60.0
SLOW_SECONDS: Final = 1.0
"""Seconds after which a call is logged and counted."""


class SessionDelays:
    """By session, until when its next call waits, because an earlier one took long."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    async def wait(self, session_id: str | None) -> None:
        """Wait until the session may use the thread again; calls about no session never wait."""
        if session_id is None:
            return
        while (delay := self._until.get(session_id, 0.0) - time.monotonic()) > 0:  # noqa: ASYNC110  (time ends it)
            await asyncio.sleep(delay)
        self._until.pop(session_id, None)

    def record(self, session_id: str | None, seconds: float) -> None:
        """Record how long a call took on the thread."""
        if session_id is not None and seconds > FREE_SECONDS:
            self._until[session_id] = time.monotonic() + min(seconds * DELAY_FACTOR, MAX_DELAY)


class DatabaseThread:
    """One long-lived thread that runs database functions in the order they come.

    With a ``limit``, the database cancels a statement after so many seconds: OperationalError.
    """

    def __init__(self, name: str, *, limit: float | None = None):
        self._name, self._limit = name, limit
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=self._begin)
        self._delays = SessionDelays()

    def _begin(self) -> None:
        wait_briefly_for_locks()
        if self._limit is not None:
            limit_statements(connection, self._limit)

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``function`` on the thread and return its result."""
        context = actor_context.current_context()
        session_id = context.get("session_id")
        await self._delays.wait(session_id)
        call = partial(function, *args, **kwargs)
        name = getattr(function, "__qualname__", type(function).__name__)
        result, cost = await asyncio.get_running_loop().run_in_executor(
            self._executor, self._run_timed, call, name, context
        )
        self._delays.record(session_id, cost)
        if isinstance(result, _Raised):
            raise result.error
        return result

    def _run_timed(
        self, call: Callable[[], T], name: str, context: actor_context.ActorContext
    ) -> tuple[T | _Raised, float]:
        """Return the result or the error of a call, and the seconds that it cost.

        On SQLite these are seconds of processor time: a call also takes long while others keep the database locked, and
        then its session is not the one to delay.
        """
        began, began_work = time.monotonic(), time.thread_time()
        result: T | _Raised
        try:
            result = self._run(call, context)
        except Exception as error:  # noqa: BLE001  (raised again in the caller's task)
            result = _Raised(error)
        seconds = time.monotonic() - began
        if seconds > SLOW_SECONDS:
            METRICS_BUFFER.count("kandev_database_calls_slow_total", thread=self._name)
            with actor_context.acting_exactly_as(context):
                session_id, cause = context.get("session_id", "none"), context.get("cause", "none")
                log.warning(
                    "%s took %.1f s on the thread %s; session: %s, cause: %s",
                    name, seconds, self._name, session_id, cause,
                )  # fmt: skip
        return result, time.thread_time() - began_work if connection.vendor == "sqlite" else seconds

    def _run(self, call: Callable[[], T], context: actor_context.ActorContext) -> T:
        _replace_broken_connections()
        with actor_context.acting_exactly_as(context), limited_job(connection, self._limit):
            return call()

    async def run_at_shutdown(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a clean-up ``function``; if the database is unavailable, log that and continue to shut down.

        The effect is then that of a killed process: leases expire without a release.
        """
        try:
            await self(function, *args, **kwargs)
        except Error as error:
            log.warning("the database is unavailable at shutdown: %s", error)

    def close(self) -> None:
        """Finish the current function, then close the thread's connection."""
        # On that thread, because Django's connections belong to the thread that opened them.
        self._executor.submit(connections.close_all)
        self._executor.shutdown(wait=True)


@dataclass(frozen=True, slots=True)
class _Raised:
    """The error of a call."""

    error: Exception


def _replace_broken_connections() -> None:
    """Close broken connections, because the thread outlives a database restart; a new one is opened when needed."""
    for opened in connections.all(initialized_only=True):
        if opened.errors_occurred and not opened.is_usable():
            opened.close()


CallParams = ParamSpec("CallParams")
Returned = TypeVar("Returned")

_threads: Final = ThreadPoolExecutor(max_workers=4, thread_name_prefix="sockets")


async def run_in_database(
    function: Callable[CallParams, Returned], *args: CallParams.args, **kwargs: CallParams.kwargs
) -> Returned:
    """Run ``function`` on a thread of the pool, with a connection that is closed afterwards."""
    call = partial(function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads, _run_and_close, call)


_user_turns: Final[WeakValueDictionary[int, asyncio.Lock]] = WeakValueDictionary()


async def run_for_user(
    user_id: int, function: Callable[CallParams, Returned], *args: CallParams.args, **kwargs: CallParams.kwargs
) -> Returned:
    """Do the same as ``run_in_database``, but one call of a user at a time: nobody can use up the threads of all."""
    turn = _user_turns.setdefault(user_id, asyncio.Lock())
    await turn.acquire()
    call = asyncio.ensure_future(run_in_database(function, *args, **kwargs))

    def end_turn(ended: asyncio.Future[Returned]) -> None:
        turn.release()
        if not ended.cancelled():
            ended.exception()  # a caller that is gone does not read it

    # The caller may be cancelled when its client goes; the thread works on, so the turn lasts until that has ended.
    call.add_done_callback(end_turn)
    return await asyncio.shield(call)


def _run_and_close(call: Callable[[], Returned]) -> Returned:
    try:
        return call()
    finally:
        connections.close_all()


MAX_BATCH: Final = 32
"""Requests of one call: about 10 ms, so that other work on the thread is not delayed."""


class HasSessionId(Protocol):
    """A request about one session."""

    @property
    def session_id(self) -> uuid.UUID:
        """Id of the session."""


Request = TypeVar("Request", bound=HasSessionId)
Result = TypeVar("Result")


class BatchExecutor(Generic[Request, Result]):
    """Call ``function`` for several requests at once on a database thread; later requests join its next call.

    ``function`` gets the requests sorted by session, so that two calls cannot deadlock on each other's rows, and
    returns a result or an error for each. If it raises, each request is tried alone. A session has one request at a
    time.
    """

    def __init__(self, thread: DatabaseThread, function: Callable[[Sequence[Request]], Sequence[Result | Exception]]):
        self._thread, self._function = thread, function
        self._waiting: deque[tuple[Request, asyncio.Future[Result]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, request: Request) -> Result:
        """Return the result of this request, or raise its error."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="batches")
        return await future

    async def _run(self) -> None:
        actor_context.begin_context()  # it works for all callers, not only for the first
        while self._waiting:
            taken = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
            batch = [entry for entry in taken if not entry[1].done()]  # the other callers were cancelled
            if batch:
                await self._execute(sorted(batch, key=lambda entry: entry[0].session_id))

    async def _execute(self, batch: Sequence[tuple[Request, asyncio.Future[Result]]]) -> None:
        results: Sequence[Result | Exception]
        try:
            results = await self._thread(self._function, [request for request, _ in batch])
        except Exception as error:  # noqa: BLE001  (the caller of the request handles it)
            # The call was rolled back as a whole. Tried alone, only the request at fault fails.
            if len(batch) > 1:
                for entry in batch:
                    await self._execute([entry])
                return
            results = [error]
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue  # its caller was cancelled meanwhile
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)


_STEPS_BETWEEN_CHECKS = 10_000
"""Instructions of SQLite's virtual machine between two looks at the clock: well below a millisecond."""


def limit_statements(opened: Any, seconds: float) -> None:
    """Let PostgreSQL cancel statements of this connection after ``seconds``; takes effect when it is opened.

    Only this thread's connection object is changed: the settings are shared by all threads.
    """
    if opened.vendor != "postgresql":
        return
    options = opened.settings_dict["OPTIONS"]
    limited = f"{options.get('options', '')} -c statement_timeout={int(seconds * 1000)}"
    opened.settings_dict = {**opened.settings_dict, "OPTIONS": {**options, "options": limited}}


class JobTooLong(OperationalError):
    """The time limit of a database thread has passed, so that no further statement is executed."""


@contextmanager
def limited_job(opened: Any, seconds: float | None) -> Iterator[None]:
    """Execute no statement after the block has used its ``seconds``: JobTooLong.

    On SQLite, the statement that runs at that time is interrupted too: OperationalError. PostgreSQL does this by
    itself (``limit_statements``). On SQLite these are seconds of processor time: a block that waits while others keep
    the database locked costs nobody anything.
    """
    if seconds is None:
        yield
        return
    clock = time.thread_time if opened.vendor == "sqlite" else time.monotonic
    deadline = clock() + seconds

    def execute_in_time(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if clock() > deadline and not sql.startswith("ROLLBACK"):
            raise JobTooLong(JobTooLong.__doc__)
        return execute(sql, params, many, context)

    with opened.execute_wrapper(execute_in_time), _interrupted_after(opened, deadline):
        yield


@contextmanager
def _interrupted_after(opened: Any, deadline: float) -> Iterator[None]:
    """Interrupt SQLite's statements once this thread has used so much processor time."""
    if opened.vendor != "sqlite":
        yield
        return
    opened.ensure_connection()
    database = opened.connection
    database.set_progress_handler(lambda: time.thread_time() > deadline, _STEPS_BETWEEN_CHECKS)
    try:
        yield
    finally:
        database.set_progress_handler(None, _STEPS_BETWEEN_CHECKS)


def is_too_long(error: BaseException) -> bool:
    """Return whether the error means that a statement, or the calls of a thread together, took too long."""
    return isinstance(error, JobTooLong) or is_cancelled(error)
