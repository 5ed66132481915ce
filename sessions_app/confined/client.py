"""A pool: it starts a fork server when it is first needed, and has operations run in the server's children."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from executors_app.machine.costly_work import begin_costly_work
from sessions_app.confined.admission import Admission, Ticket, TooManyWaiting
from sessions_app.confined.limits import Limits
from sessions_app.confined.messages import ProtocolError, receive_message, send_message

ANSWER_GRACE: Final = 5.0
"""Extra seconds to wait for the answer of a child, or for the report of its end."""
_ROOT: Final = Path(__file__).parents[2]

Answering = Callable[[dict[str, Any]], dict[str, Any]]
"""Answers a question that an operation asks through its ClientLink."""


class TooExpensive(Exception):
    """The text has used up the processor time or memory of its request. It would do so again."""


class PoolUnavailable(Exception):
    """The request failed, but not because of the text: the machine is busy, or no process could start."""


class OperationFailed(Exception):
    """The operation raised an exception; its traceback is the message."""


class Failure(Enum):
    """Why an item of a batch has no result."""

    TOO_EXPENSIVE = "too_expensive"
    """It used up its processor time or memory, and would do so again."""
    NOT_REACHED = "not_reached"
    """The items before it used up the time of the batch, or the process ended."""
    BROKEN = "broken"
    """The operation raised an exception."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an item of a batch, or why there is none."""

    result: dict[str, Any] | None = None
    failure: Failure | None = None
    traceback: str = ""


NOT_REACHED: Final = Outcome(failure=Failure.NOT_REACHED)


class ConfinedPool:
    """Runs operations of one module in limited processes.

    ``running`` requests run at the same time, one for each owner; of each owner, ``waiting_per_owner`` more may wait.
    Every process has its own pool, and its own fork server, which ends with it.
    """

    def __init__(self, operations: str, *, running: int = 4, waiting_per_owner: int = 8):
        self._operations = operations
        self._running = running
        self._waiting_per_owner = waiting_per_owner
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reset()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def run(
        self,
        operation: str,
        arguments: Mapping[str, Any],
        *,
        owner: str,
        limits: Limits,
        answering: Answering | None = None,
    ) -> dict[str, Any]:
        """Return the result of an operation. Raises TooExpensive, PoolUnavailable and OperationFailed.

        ``owner`` names whose request it is: a user or a team. It blocks, so call it in no event loop.
        """
        with self._admitted(owner, limits):
            return self._run_now(operation, arguments, limits, answering)

    async def run_async(
        self, operation: str, arguments: Mapping[str, Any], *, owner: str, limits: Limits
    ) -> dict[str, Any]:
        """Do what ``run`` does without blocking the event loop."""
        ticket = self._enter(owner)
        try:
            await asyncio.wait_for(asyncio.wrap_future(ticket.admitted), limits.seconds)
        except TimeoutError as error:
            self._admission.leave(ticket)
            raise PoolUnavailable("too many requests are running") from error
        except BaseException:
            self._admission.leave(ticket)
            raise
        # The pool has a thread for each request that runs, so this one begins at once. It ends by its own deadline: if
        # this coroutine is cancelled, the ticket is held until then.
        running = self._threads.submit(self._run_now, operation, arguments, limits, None)
        running.add_done_callback(lambda _: self._admission.leave(ticket))
        return await asyncio.wrap_future(running)

    def run_batch(
        self,
        operation: str,
        batch: Sequence[Mapping[str, Any]],
        *,
        owner: str,
        limits: Limits,
        item_cpu_seconds: float | None = None,
    ) -> list[Outcome]:
        """Return the outcome of an operation for each item, in order. Raises PoolUnavailable if there is none at all.

        The items share ``limits``; none gets more than ``item_cpu_seconds`` of processor time.
        """
        if not batch:
            return []
        request = {
            "operation": operation,
            "batch": [dict(arguments) for arguments in batch],
            "item_cpu_seconds": item_cpu_seconds or limits.cpu_seconds,
            "limits": asdict(limits),
        }
        outcomes: list[Outcome] = []
        with self._admitted(owner, limits):
            try:
                with self._connect() as connection:
                    connection.settimeout(limits.seconds + ANSWER_GRACE)
                    send_message(connection, request)
                    has_share = True
                    while (answer := receive_message(connection)).keys() & {"item", "short_of_time"}:
                        if "item" in answer:
                            outcomes.append(_outcome(answer))
                        else:
                            has_share = False
                    # A native function has kept the item from being interrupted.
                    if answer.get("failed") == "cpu" and has_share:
                        outcomes.append(Outcome(failure=Failure.TOO_EXPENSIVE))
            except (OSError, ProtocolError, ValueError) as error:
                if not outcomes:
                    raise PoolUnavailable("the process does not answer") from error
        return outcomes + [NOT_REACHED] * (len(batch) - len(outcomes))

    def close(self) -> None:
        """End the fork server. It starts again when it is needed."""
        with self._lock:
            self._end_server()

    def _run_now(
        self, operation: str, arguments: Mapping[str, Any], limits: Limits, answering: Answering | None
    ) -> dict[str, Any]:
        request = {"operation": operation, "arguments": dict(arguments), "limits": asdict(limits)}
        try:
            with self._connect() as connection:
                connection.settimeout(limits.seconds + ANSWER_GRACE)
                send_message(connection, request)
                while "question" in (answer := receive_message(connection)):
                    reply = answering(answer["question"]) if answering else {}
                    send_message(connection, reply)
        except (OSError, ProtocolError, ValueError) as error:
            raise PoolUnavailable("the process does not answer") from error
        return _result(answer)

    def _enter(self, owner: str) -> Ticket:
        begin_costly_work("a limited process")
        try:
            return self._admission.enter(owner)
        except TooManyWaiting as error:
            raise PoolUnavailable("too many requests of the same owner are waiting") from error

    @contextlib.contextmanager
    def _admitted(self, owner: str, limits: Limits) -> Iterator[None]:
        ticket = self._enter(owner)
        try:
            try:
                ticket.admitted.result(limits.seconds)
            except TimeoutError as error:
                raise PoolUnavailable("too many requests are running") from error
            yield
        finally:
            self._admission.leave(ticket)

    def _connect(self) -> socket.socket:
        """Return a connection to a new child of the fork server. Raises OSError if no process can be started."""
        ours, theirs = socket.socketpair()
        try:
            with self._lock:
                try:
                    socket.send_fds(self._control_socket(), [b"c"], [theirs.fileno()])
                except (BrokenPipeError, ConnectionResetError):
                    self._end_server()  # It was killed. It holds no state, so a new one can take over.
                    socket.send_fds(self._control_socket(), [b"c"], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def _control_socket(self) -> socket.socket:
        if self._control is not None:
            return self._control
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    (sys.executable, "-m", "sessions_app.confined.server", self._operations),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    cwd=_ROOT,
                    env={"PATH": os.defpath, "LANG": "C.UTF-8"},
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        ours.settimeout(ANSWER_GRACE)  # a server that is stopped does not stop this process, too
        self._control = ours
        return ours

    def _end_server(self) -> None:
        """End the fork server. Its children continue until they have answered, or their time is over."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.wait()
        self._control = self._process = None

    def _forget(self) -> None:
        """Forget the fork server after a fork: it belongs to the parent, whose threads may hold the locks."""
        self._reset()
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.returncode = 0  # not a child of this process, so nothing may wait for it
        self._control = self._process = None

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._admission = Admission(running=self._running, waiting_per_owner=self._waiting_per_owner)
        self._threads = ThreadPoolExecutor(self._running, thread_name_prefix="confined")


def _outcome(answer: Mapping[str, Any]) -> Outcome:
    try:
        return Outcome(_result(answer))
    except TooExpensive:
        return Outcome(failure=Failure.TOO_EXPENSIVE)
    except PoolUnavailable:
        return NOT_REACHED
    except OperationFailed as error:
        return Outcome(failure=Failure.BROKEN, traceback=str(error))


def _result(answer: Mapping[str, Any]) -> dict[str, Any]:
    if answer.get("failed") == "time":
        raise PoolUnavailable("the machine was too busy to finish in time")
    if "failed" in answer:
        raise TooExpensive
    if "broken" in answer:
        raise OperationFailed(answer["broken"])
    result: dict[str, Any] = answer["result"]
    return result
