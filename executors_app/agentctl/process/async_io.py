"""Asynchronous pipes to child processes, line splitting, waiting for the end of a process, and state notification."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Final


class StateNotifier:
    """Wakes all waiters after a change of state, so that they check their conditions again."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake all waiters: the state has changed."""
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is checked now and after each ``notify``."""
        while not condition():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(waiter)
            try:
                await waiter
            finally:
                self._waiting.discard(waiter)


CHUNK_BYTES: Final = 256 * 1024
"""Maximum bytes per read."""
LINE_LIMIT: Final = 64 * 1024 * 1024
"""Bytes of the longest line that is not skipped."""
WRITE_TIMEOUT: Final = 30.0
"""Seconds that a child may leave its input unread before it counts as stuck."""
LAST_OUTPUT_TIMEOUT: Final = 1.0
"""Seconds to wait for the end of a dead child's output: another process may hold the pipe open."""


class PipeStuck(Exception):
    """The child did not read in time; nothing more can be written to it."""


class PipeReader:
    """The reading end of a pipe; one reader at a time, and none after a read that was cancelled."""

    def __init__(self, descriptor: int):
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._waiter: asyncio.Future[bytes] | None = None
        self._is_watched = False
        """Whether the loop watches the pipe; it continues between two reads, unless bytes arrive that nobody awaits."""
        self._ending = False

    async def read(self) -> bytes:
        """Return the available or next bytes; empty at the end. Other tasks can run meanwhile."""
        if self._descriptor < 0:
            return b""
        try:
            data = os.read(self._descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return await self._next_bytes()
        await asyncio.sleep(0)
        return data

    def end(self) -> None:
        """Limit further waits to ``LAST_OUTPUT_TIMEOUT``, because the child is dead."""
        if not self._ending:
            self._ending = True
            asyncio.get_running_loop().call_later(LAST_OUTPUT_TIMEOUT, self._answer, self._waiter, b"")

    def discard(self) -> None:
        """From now on read and discard: who writes to a pipe that nobody reads blocks, or dies once it is closed."""
        if self._descriptor >= 0:
            self._unwatch()
            asyncio.get_running_loop().add_reader(self._descriptor, self._discard_bytes)
            self._is_watched = True

    def _discard_bytes(self) -> None:
        try:
            if not os.read(self._descriptor, CHUNK_BYTES):
                self._unwatch()
        except BlockingIOError:
            pass
        except OSError:
            self._unwatch()

    def close(self) -> None:
        """Close the descriptor; a pending read returns empty."""
        if self._descriptor >= 0:
            self._unwatch()
            self._answer(self._waiter, b"")
            os.close(self._descriptor)
            self._descriptor = -1

    async def _next_bytes(self) -> bytes:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bytes] = loop.create_future()
        self._waiter = waiter
        if not self._is_watched:
            loop.add_reader(self._descriptor, self._handle_readable)
            self._is_watched = True
        if self._ending:
            timer = loop.call_later(LAST_OUTPUT_TIMEOUT, self._answer, waiter, b"")
        else:
            timer = None
        try:
            return await waiter
        finally:
            self._waiter = None
            if timer:
                timer.cancel()

    def _handle_readable(self) -> None:
        if self._waiter is None or self._waiter.done():
            self._unwatch()  # otherwise the loop would not rest until the next read
            return
        try:
            self._waiter.set_result(os.read(self._descriptor, CHUNK_BYTES))
        except BlockingIOError:
            pass
        except OSError as error:
            self._waiter.set_exception(error)

    def _unwatch(self) -> None:
        if self._is_watched:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self._is_watched = False

    @staticmethod
    def _answer(waiter: asyncio.Future[bytes] | None, data: bytes) -> None:
        if waiter is not None and not waiter.done():
            waiter.set_result(data)


class PipeWriter:
    """The writing end of a pipe; messages of several tasks are not interleaved."""

    def __init__(self, descriptor: int):
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._turn = asyncio.Lock()
        self._torn = False

    async def write(self, data: bytes, timeout: float = WRITE_TIMEOUT) -> None:
        """Write all of ``data``; raises PipeStuck after ``timeout`` seconds, BrokenPipeError if there is no reader.

        After a message was cut off, nothing more is ever written: the child would read the rest as part of it.
        """
        try:
            async with asyncio.timeout(timeout), self._turn:
                await self._write(data)
        except TimeoutError as error:
            raise PipeStuck(f"the agent has not read its input for {timeout:g} s") from error

    def close(self) -> None:
        """Close the child's input."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    async def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        if self._torn:
            raise PipeStuck("an earlier message to the agent was cut off")
        while rest:
            if self._descriptor < 0:
                raise BrokenPipeError("the agent's input is closed")
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                self._torn = len(rest) < len(data)  # stays set if we are cancelled while waiting
                await self._writable()
                self._torn = False

    async def _writable(self) -> None:
        loop, descriptor = asyncio.get_running_loop(), self._descriptor
        writable = asyncio.Event()
        loop.add_writer(descriptor, writable.set)
        try:
            await writable.wait()
        finally:
            if self._descriptor >= 0:
                loop.remove_writer(descriptor)


_SKIPPED_START: Final = 1024


class LineSplitter:
    """Splits a stream into lines; a line longer than ``limit`` bytes is skipped and counted."""

    def __init__(self, limit: int = LINE_LIMIT):
        self.limit = limit
        self.skipped = 0
        self.skipped_start = b""
        """The first bytes of the line that was skipped last."""
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that ``data`` completes, without line ends."""
        *complete, rest = data.split(b"\n")
        if complete:
            first = self._finish(complete.pop(0))
            if first is not None:
                complete.insert(0, first)
        if rest:
            self._grow(rest)
        return complete

    def torn(self) -> bytes:
        """Return the incomplete last line."""
        return b"".join(self._parts)

    def _finish(self, end: bytes) -> bytes | None:
        self._grow(end)
        line = None
        if not self._skipping:
            line = b"".join(self._parts)
        self._parts, self._size, self._skipping = [], 0, False
        return line

    def _grow(self, part: bytes) -> None:
        if self._skipping:
            return
        self._parts.append(part)
        self._size += len(part)
        if self._size > self.limit:
            self.skipped += 1
            self.skipped_start = b"".join(self._parts)[:_SKIPPED_START]
            self._parts, self._size, self._skipping = [], 0, True


async def _wait_readable(descriptor: int) -> None:
    """Wait until a descriptor is readable."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)


async def wait_for_end(pid: int) -> None:
    """Wait until a process has ended; returns at once if there is none. A child still has to be reaped."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            await _wait_readable(descriptor)
        finally:
            os.close(descriptor)
