"""agentctl's end of a guard process (``guard_process``): spawn an agent under it, stop it, hear of its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from executors_app.agentctl import adoption, guard_process, identity, last_words, two_users
from executors_app.agentctl.child_environment import AGENT_MARKER
from executors_app.agentctl.pipes import PipeReader, PipeWriter, wait_readable

_SOURCE: Final = Path(guard_process.__file__).read_bytes()
"""Read once: an upgrade of the package in place must not change the guards of this agentctl (rule 24)."""
_HOPELESS: Final = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.EISDIR, errno.ELOOP, errno.EINVAL)
_PATIENCE: Final = 5.0
"""Seconds for a guard to end its tree, beyond the grace; then it is killed and its orphans are ended from here."""


class SpawnFailed(Exception):
    """The agent's program could not be started."""

    def __init__(self, message: str, number: int | None = None):
        super().__init__(message)
        self.permanent = number in _HOPELESS
        """Whether the same call can never succeed as things stand."""


class Guard:
    """One guard and the agent under it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], control: int, status: int, launch: str):
        self.stdin, self.stdout, self.stderr = _pipes_of(process)
        self.agent_pid = 0
        self.exit_code: int | None = None
        """The agent's, negative for a signal; None while it lives, and for ever if the guard was killed."""
        self.agent_ended = asyncio.Event()
        self.tree_ended = asyncio.Event()
        """Nothing is left of the agent, or all that could be done was done."""
        self.left: list[int] = []
        """Pids that could not be ended: those of another user, for instance."""
        self._name, self._process, self._control, self._launch = name, process, control, launch
        self._status, self._lines = PipeReader(status), b""
        found = identity.of(process.pid)
        self._since = found.start_time if found else 0
        self._born = asyncio.Event()
        self._failure = SpawnFailed(f"{name}: the guard process did not start")

    @classmethod
    async def spawn(cls, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> Guard:
        """Start ``argv`` under a new guard; SpawnFailed says in a sentence why it cannot be."""
        if not argv:
            raise SpawnFailed("the agent has no command", errno.EINVAL)
        adoption.become_subreaper()
        guard = _start(argv, env, cwd)
        try:
            await guard.begin()
        except BaseException:
            guard.abandon()
            raise
        return guard

    async def begin(self) -> None:
        """Follow the guard from now on, and wait for the agent's birth; SpawnFailed."""
        self._watching = asyncio.create_task(self._watch(), name="guard")
        await self._born.wait()
        if not self.agent_pid:
            raise self._failure

    def abandon(self) -> None:
        """Let go of a guard whose agent nobody wants; it ends by itself."""
        self._close_control()
        self.close_pipes()

    async def stop(self, grace: float) -> int | None:
        """TERM, after ``grace`` seconds KILL, for the whole tree; the agent's exit code. May be called again."""
        self._order(f"stop {max(0.0, grace):.3f}\n".encode())
        if not await self._ended_within(grace + _PATIENCE):
            self._close_control()
            if not await self._ended_within(_PATIENCE):
                self._process.kill()
                await self.tree_ended.wait()
        return self.exit_code

    async def _watch(self) -> None:
        """Follow the status pipe to its end, then take in the guard and what it may have left."""
        while line := await self._next_line():
            self._hear(*line.split())
        await self._bury()
        if self.agent_pid and (self.exit_code is None or self.left):
            survivors = await adoption.end_orphans(self._launch, self._since)
            self.left = [survivor.pid for survivor in survivors]
        for event in (self._born, self.agent_ended, self.tree_ended):
            event.set()

    def _hear(self, word: str, number: str) -> None:
        """One line of the status pipe."""
        match word:
            case "spawned":
                self.agent_pid = int(number)
                self._born.set()
            case "failed":
                self._failure = SpawnFailed(f"{self._name}: {os.strerror(int(number))}", int(number))
            case "exited":
                self.exit_code = int(number)
                self.agent_ended.set()
            case "left":
                self.left.append(int(number))

    async def _next_line(self) -> str:
        """The next line of the status pipe; empty at its end."""
        while b"\n" not in self._lines:
            data = await self._status.read()
            if not data:
                return ""
            self._lines += data
        line, _, self._lines = self._lines.partition(b"\n")
        return line.decode()

    async def _bury(self) -> None:
        """Wait for the guard's own end and give back what belonged to it, but for the agent's pipes."""
        self._close_control()
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self._process.pid)
            try:
                await wait_readable(descriptor)
            finally:
                os.close(descriptor)
        self._process.wait()
        self._status.close()

    def close_pipes(self) -> None:
        """Close the ends of the agent's stdin, stdout and stderr."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            pipe.close()

    def _order(self, order: bytes) -> None:
        if self._control >= 0:
            with contextlib.suppress(OSError):
                os.write(self._control, order)

    def _close_control(self) -> None:
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    async def _ended_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.tree_ended.wait()
        return self.tree_ended.is_set()


def _start(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> Guard:
    """Start the guard process itself, from the source that this agentctl began with."""
    with contextlib.ExitStack() as stack:
        source = os.memfd_create("guard")
        stack.callback(os.close, source)
        os.write(source, _SOURCE)
        control_end, control = os.pipe()
        stack.callback(os.close, control_end)
        status, status_end = os.pipe()
        stack.callback(os.close, status_end)
        words = last_words.descriptor()
        if words >= 0:
            stack.callback(os.close, words)
        numbers = map(str, (control_end, status_end, words))
        command = [sys.executable, "-I", "-S", f"/proc/self/fd/{source}", *numbers, *argv]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=cwd,
                env=dict(env),
                pass_fds=[number for number in (source, control_end, status_end, words) if number >= 0],
                start_new_session=True,
                **two_users.of_children(),
            )
        except (OSError, ValueError) as error:
            os.close(control)
            os.close(status)
            number = error.errno if isinstance(error, OSError) else errno.EINVAL
            raise SpawnFailed(f"{argv[0]} in {cwd}: {error}", number) from error
        return Guard(argv[0], process, control, status, env.get(AGENT_MARKER, ""))


def _pipes_of(process: subprocess.Popen[bytes]) -> tuple[PipeWriter, PipeReader, PipeReader]:
    """Take the descriptors over from Popen, which would close them when it likes."""
    files = (process.stdin, process.stdout, process.stderr)
    stdin, stdout, stderr = (os.dup(file.fileno()) for file in files if file)
    for file in files:
        if file:
            file.close()
    return PipeWriter(stdin), PipeReader(stdout), PipeReader(stderr)
