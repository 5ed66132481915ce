"""agentctl's end of a guard process (``guard_process``): spawn an agent under it, stop it, hear of its end.

One guard is kept ready for the next agent (``keep_one_ready``), because the start of an interpreter is most of
what a guard costs, and somebody waits for every start of an agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib.util
import marshal
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from executors_app.agentctl.process import guard_process, identity, privilege_drop, subreaper
from executors_app.agentctl.process.async_io import PipeReader, PipeStuck, PipeWriter, wait_for_end
from executors_app.agentctl.process.child_environment import AGENT_MARKER
from executors_app.agentctl.protocol import EXECUTION_MARKER, Code

_HEADER: Final = importlib.util.MAGIC_NUMBER + bytes(12)
_PROGRAM: Final = _HEADER + marshal.dumps(compile(Path(guard_process.__file__).read_bytes(), "guard", "exec"))
"""Made once: an upgrade of the package in place must not change the guards of this agentctl (rule 24)."""
_PERMANENT_ERRORS: Final = (
    errno.ENOENT,
    errno.EACCES,
    errno.ENOTDIR,
    errno.ENOEXEC,
    errno.EISDIR,
    errno.ELOOP,
    errno.EINVAL,
)
_GUARD_TIMEOUT: Final = 5.0
"""Seconds for a guard to end its tree, beyond the grace; then it is killed and its orphans are ended from here."""


class SpawnFailed(Exception):
    """The agent's program could not be started."""

    def __init__(self, message: str, number: int | None = None, *, missing: bool = False):
        super().__init__(message)
        self.code = Code.PROGRAM_MISSING if missing else Code.SPAWN_FAILED
        self.permanent = number in _PERMANENT_ERRORS
        """Whether the same call can never succeed as things stand."""


class GuardClient:
    """One guard and the agent under it."""

    def __init__(self, process: subprocess.Popen[bytes], control: int, status: int):
        self.stdin, self.stdout, self.stderr = _detach_pipes(process)
        self.agent_pid = 0
        self.exit_code: int | None = None
        """The agent's, negative for a signal; None while it lives, and for ever if the guard was killed."""
        self.agent_ended = asyncio.Event()
        self.tree_ended = asyncio.Event()
        """Nothing is left of the agent, or all that could be done was done."""
        self.left: list[int] = []
        """Pids that could not be ended: those of another user, for instance."""
        self._process, self._control = process, PipeWriter(control)
        self._status, self._lines = PipeReader(status), b""
        self._name, self._place, self._launch = "", "", ""
        found = identity.identify(process.pid)
        self._since = found.start_time if found else 0
        self._born = asyncio.Event()
        self._failure = SpawnFailed("the guard process did not start")

    @classmethod
    async def spawn(cls, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> GuardClient:
        """Start ``argv`` under a guard that has none; SpawnFailed says in a sentence why it cannot be."""
        if not argv:
            raise SpawnFailed("the agent has no command", errno.EINVAL)
        subreaper.become_subreaper()
        guard = _SpareGuard.take() or _start_guard_process(
            {name: env[name] for name in (EXECUTION_MARKER,) if name in env}
        )
        try:
            await guard.begin(argv, env, cwd)
        except BaseException:
            guard.abandon()
            raise
        return guard

    async def begin(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        """Have the agent started, follow the guard from now on, and wait for the agent's birth; SpawnFailed."""
        self._name, self._place, self._launch = argv[0], cwd, env.get(AGENT_MARKER, "")
        subreaper.clear_killed_processes()
        order = marshal.dumps((list(argv), dict(env), cwd))
        self._watching = asyncio.create_task(self._watch(), name="guard")
        with contextlib.suppress(OSError, PipeStuck):  # then it does not start, which is said below
            await self._control.write(len(order).to_bytes(guard_process.LENGTH_BYTES, "big") + order, _GUARD_TIMEOUT)
            await self._born.wait()
        if not self.agent_pid:
            raise self._failure

    @property
    def waits(self) -> bool:
        """Whether its process lives."""
        return self._process.poll() is None

    def abandon(self) -> None:
        """Let go of a guard whose agent nobody wants; it ends by itself."""
        self._control.close()
        self.close_pipes()

    async def dismiss(self) -> None:
        """Let go of a guard that was never used, and wait for its end."""
        self.abandon()
        await self._bury()

    def discard(self) -> None:
        """Give back what belonged to a guard that died before it was used."""
        self.abandon()
        self._status.close()

    async def stop(self, grace: float) -> int | None:
        """TERM, after ``grace`` seconds KILL, for the whole tree; the agent's exit code. May be called again."""
        with contextlib.suppress(OSError, PipeStuck):
            await self._control.write(f"stop {max(0.0, grace):.3f}\n".encode(), _GUARD_TIMEOUT)
        if not await self._ended_within(grace + _GUARD_TIMEOUT):
            self._control.close()
            if not await self._ended_within(_GUARD_TIMEOUT):
                self._process.kill()
                await self.tree_ended.wait()
        return self.exit_code

    async def _watch(self) -> None:
        """Follow the status pipe to its end, then take in the guard and what it may have left."""
        while line := await self._next_line():
            self._hear(*line.split())
        await self._bury()
        if self.agent_pid and (self.exit_code is None or self.left):
            survivors = await subreaper.end_orphans(self._launch, self._since)
            self.left = [survivor.pid for survivor in survivors]
        for event in (self._born, self.agent_ended, self.tree_ended):
            event.set()
        _SpareGuard.renew()

    def _not_started(self, number: int) -> SpawnFailed:
        """The kernel gives one error for a program and for a directory that is not there: tell which."""
        if number == errno.ENOENT and Path(self._place).is_dir():
            return SpawnFailed(f"the program {self._name} was not found", number, missing=True)
        return SpawnFailed(f"{self._name} in {self._place}: {os.strerror(number)}", number)

    def _hear(self, word: str, number: str) -> None:
        """One line of the status pipe."""
        match word:
            case "spawned":
                self.agent_pid = int(number)
                self._born.set()
            case "failed":
                self._failure = self._not_started(int(number))
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
        self._control.close()
        await wait_for_end(self._process.pid)
        self._process.wait()
        self._status.close()

    def close_pipes(self) -> None:
        """Close the ends of the agent's stdin, stdout and stderr."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            pipe.close()

    async def _ended_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.tree_ended.wait()
        return self.tree_ended.is_set()


class _SpareGuard:
    """The guard that waits for the next agent of this process."""

    env: Mapping[str, str] | None = None
    """The environment of such guards; None where none is kept."""
    guard: GuardClient | None = None

    @classmethod
    def take(cls) -> GuardClient | None:
        """It, unless it has died in the meantime."""
        guard, cls.guard = cls.guard, None
        if guard is not None and not guard.waits:
            guard.discard()
            return None
        return guard

    @classmethod
    def renew(cls) -> None:
        """See that there is one, if one is kept; where none can be started now, the next agent's start will say so."""
        if cls.env is not None and cls.guard is None:
            with contextlib.suppress(SpawnFailed):
                cls.guard = _start_guard_process(cls.env)


def keep_spare_guard(marker: Mapping[str, str]) -> None:
    """From now on a guard marked ``marker`` waits whenever no agent lives. For a process with one agent at a time."""
    _SpareGuard.env = dict(marker)
    _SpareGuard.renew()


async def drop_spare_guard() -> None:
    """No guard waits any more, and none is left when this returns."""
    _SpareGuard.env = None
    if guard := _SpareGuard.take():
        await guard.dismiss()


def _start_guard_process(env: Mapping[str, str]) -> GuardClient:
    """Start the guard process itself, from the program that this agentctl began with; SpawnFailed."""
    with contextlib.ExitStack() as stack:
        program = os.memfd_create("guard")
        stack.callback(os.close, program)
        os.write(program, _PROGRAM)
        control_end, control = os.pipe()
        stack.callback(os.close, control_end)
        status, status_end = os.pipe()
        stack.callback(os.close, status_end)
        words = subreaper.open_killed_processes_file()
        if words >= 0:
            stack.callback(os.close, words)
        numbers = map(str, (control_end, status_end, words))
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", f"/proc/self/fd/{program}", *numbers],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd="/",
                env=dict(env),
                pass_fds=[number for number in (program, control_end, status_end, words) if number >= 0],
                start_new_session=True,
                **privilege_drop.child_user_arguments(),
            )
        except OSError as error:
            os.close(control)
            os.close(status)
            raise SpawnFailed(f"the agent's guard: {error}", error.errno) from error
        return GuardClient(process, control, status)


def _detach_pipes(process: subprocess.Popen[bytes]) -> tuple[PipeWriter, PipeReader, PipeReader]:
    """Take the descriptors over from Popen, which would close them when it likes."""
    files = (process.stdin, process.stdout, process.stderr)
    stdin, stdout, stderr = (os.dup(file.fileno()) for file in files if file)
    for file in files:
        if file:
            file.close()
    return PipeWriter(stdin), PipeReader(stdout), PipeReader(stderr)
