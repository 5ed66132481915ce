"""The client of a guard process (``guard_process``): start an agent under it, stop it, and follow its end.

Starting an interpreter is most of the cost of a guard, and users wait for every start of an agent. So one
guard is kept ready for the next agent (``keep_spare_guard``), unless agentctl has a forked one (``forked_guard``).
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

from executors_app.agentctl.process import forked_guard, guard_process, subreaper
from executors_app.agentctl.process.async_io import PipeReader, PipeStuck, PipeWriter, wait_for_end
from executors_app.agentctl.process.forked_guard import ForkedGuard
from executors_app.machine.process import identity, spawning
from executors_app.machine.process.spawning import AGENT_MARKER
from executors_app.wire.protocol import EXECUTION_MARKER, Code

_HEADER: Final = importlib.util.MAGIC_NUMBER + bytes(12)
_PROGRAM: Final = _HEADER + marshal.dumps(compile(Path(guard_process.__file__).read_bytes(), "guard", "exec"))
"""Compiled at import: an upgrade of the package must not change the guards of a running agentctl."""
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
"""Seconds beyond the grace for a guard to end its tree; then it is killed and its orphans are ended from here."""


class SpawnFailed(Exception):
    """The agent's program could not be started."""

    def __init__(self, message: str, number: int | None = None, *, missing: bool = False):
        super().__init__(message)
        self.code = Code.PROGRAM_MISSING if missing else Code.SPAWN_FAILED
        self.permanent = number in _PERMANENT_ERRORS
        """Whether a retry cannot succeed until something is changed."""


class GuardClient:
    """One guard and the agent under it."""

    def __init__(self, process: subprocess.Popen[bytes] | ForkedGuard, pipes: Mapping[str, int]):
        self.stdin, self.stdout = PipeWriter(pipes["stdin"]), PipeReader(pipes["stdout"])
        self.stderr = PipeReader(pipes["stderr"])
        self.agent_pid = 0
        self.exit_code: int | None = None
        """The agent's exit code, negative for a signal; None while it lives, and if the guard was killed."""
        self.agent_ended = asyncio.Event()
        self.tree_ended = asyncio.Event()
        """Set when nothing is left of the agent, or no more can be done."""
        self.survivors: list[int] = []
        """Pids that could not be killed, for instance those of another user."""
        self._process, self._control = process, PipeWriter(pipes["control"])
        self._status, self._buffer = PipeReader(pipes["status"]), b""
        self._program, self._cwd, self._launch = "", "", ""
        self._search_path = ""
        self._start_time = 0
        self._spawned, self._recorded = asyncio.Event(), asyncio.Event()
        self._failure = SpawnFailed("the guard process did not start")

    @classmethod
    async def spawn(
        cls, argv: Sequence[str], env: Mapping[str, str], cwd: str, *, keep_descendants: bool = False
    ) -> GuardClient:
        """Start ``argv`` under the spare guard or a new one; raises SpawnFailed with the reason.

        With ``keep_descendants`` processes that outlive the agent run on until ``stop``.
        """
        if not argv:
            raise SpawnFailed("the agent has no command", errno.EINVAL)
        subreaper.become_subreaper()
        guard = _SpareGuard.take() or _start_guard_process(
            {name: env[name] for name in (EXECUTION_MARKER,) if name in env}
        )
        try:
            await guard.start_agent(argv, env, cwd, keep_descendants=keep_descendants)
        except BaseException:
            guard.abandon()
            raise
        return guard

    async def start_agent(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, *, keep_descendants: bool = False
    ) -> None:
        """Send the guard what to start, follow it, and wait until the agent runs; raises SpawnFailed."""
        self._program, self._cwd, self._launch = argv[0], cwd, env.get(AGENT_MARKER, "")
        self._search_path = env.get("PATH", os.defpath)
        subreaper.clear_killed_processes()
        order = marshal.dumps((list(argv), dict(env), cwd, keep_descendants))
        self._watching = asyncio.create_task(self._watch(), name="guard")
        with contextlib.suppress(OSError, PipeStuck):  # then the agent does not start: raised below
            await self._control.write(len(order).to_bytes(guard_process.LENGTH_BYTES, "big") + order, _GUARD_TIMEOUT)
            await self._spawned.wait()
        if not self.agent_pid:
            raise self._failure

    @property
    def pid(self) -> int:
        """The pid of the guard process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the guard process is running."""
        return self._process.poll() is None

    def abandon(self) -> None:
        """Close our ends of the pipes: the guard then kills its tree and exits."""
        self._control.close()
        self.close_pipes()

    async def dismiss(self) -> None:
        """Close a guard that was never used, and wait for its end."""
        self.abandon()
        await self._reap_guard()

    def discard(self) -> None:
        """Close all pipes of a guard that died before it was used."""
        self.abandon()
        self._status.close()

    async def record_processes(self) -> None:
        """Have the processes that the agent has started recorded as those that its end will kill."""
        with contextlib.suppress(OSError, PipeStuck, TimeoutError):
            await self._control.write(b"record\n", _GUARD_TIMEOUT)
            async with asyncio.timeout(_GUARD_TIMEOUT):
                await self._recorded.wait()

    async def stop(self, grace: float) -> int | None:
        """End the whole tree (TERM, after ``grace`` seconds KILL) and return the agent's exit code. Repeatable."""
        with contextlib.suppress(OSError, PipeStuck):
            await self._control.write(f"stop {max(0.0, grace):.3f}\n".encode(), _GUARD_TIMEOUT)
        if not await self._ended_within(grace + _GUARD_TIMEOUT):
            # The end of the control pipe means KILL at once. A guard that ignores even that is killed, and ``_watch``
            # then ends its tree.
            self._control.close()
            if not await self._ended_within(_GUARD_TIMEOUT):
                self._process.kill()
                await self.tree_ended.wait()
        return self.exit_code

    async def _watch(self) -> None:
        """Follow the status pipe to its end, then reap the guard and kill what it may have left."""
        while line := await self._next_line():
            self._handle_status_line(*line.split())
        await self._reap_guard()
        # Without an exit code the guard was killed: its tree lives on, adopted by us.
        if self.agent_pid and (self.exit_code is None or self.survivors):
            survivors = await subreaper.end_orphans(self._launch, self._start_time)
            self.survivors = [survivor.pid for survivor in survivors]
        for event in (self._spawned, self._recorded, self.agent_ended, self.tree_ended):
            event.set()
        _SpareGuard.ensure()

    def _not_started(self, number: int) -> SpawnFailed:
        """Return the error of a failed exec. ENOENT can mean the program or the directory: name the right one."""
        if number == errno.ENOENT and Path(self._cwd).is_dir():
            place = ""
            if "/" not in self._program:
                place = f" in the PATH {self._search_path}"
            return SpawnFailed(f"the program {self._program} was not found{place}", number, missing=True)
        return SpawnFailed(f"{self._program} in {self._cwd}: {os.strerror(number)}", number)

    def _handle_status_line(self, word: str, number: str) -> None:
        """Handle one line of the status pipe."""
        match word:
            case "spawned":
                self.agent_pid = int(number)
                found = identity.identify(self.agent_pid)
                self._start_time = found.start_time if found else 0
                self._spawned.set()
            case "failed":
                self._failure = self._not_started(int(number))
            case "exited":
                self.exit_code = int(number)
                self.agent_ended.set()
            case "recorded":
                self._recorded.set()
            case "left":
                self.survivors.append(int(number))
            case "done" if isinstance(self._process, ForkedGuard):
                self._process.is_free = True

    async def _next_line(self) -> str:
        """Return the next line of the status pipe; empty at its end."""
        while b"\n" not in self._buffer:
            data = await self._status.read()
            if not data:
                return ""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    async def _reap_guard(self) -> None:
        """Wait for the guard's own end, unless it stays for the next agent, and close its pipes, not the agent's."""
        self._control.close()
        if not (isinstance(self._process, ForkedGuard) and self._process.is_free):
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
    """The guard that is kept ready for the next agent."""

    env: Mapping[str, str] | None = None
    """The environment of spare guards; None if none is kept."""
    guard: GuardClient | None = None

    @classmethod
    def take(cls) -> GuardClient | None:
        """Return the spare guard, unless it has died."""
        guard, cls.guard = cls.guard, None
        if guard is not None and not guard.is_running:
            guard.discard()
            return None
        return guard

    @classmethod
    def ensure(cls) -> None:
        """Start a spare guard if one is kept and there is none; the next agent's start reports a failure."""
        if cls.env is not None and cls.guard is None and forked_guard.own() is None:
            with contextlib.suppress(SpawnFailed):
                cls.guard = _start_guard_process(cls.env)


def keep_spare_guard(marker: Mapping[str, str]) -> None:
    """Keep a guard with the environment ``marker`` ready whenever no agent runs (one agent at a time).

    None is kept while there is a forked guard.
    """
    _SpareGuard.env = dict(marker)
    _SpareGuard.ensure()


async def drop_spare_guard() -> None:
    """Stop keeping a spare guard, and wait for the end of the current one."""
    _SpareGuard.env = None
    if guard := _SpareGuard.take():
        await guard.dismiss()


def _start_guard_process(env: Mapping[str, str]) -> GuardClient:
    """Use the forked guard, or execute the program that was compiled at import; raises SpawnFailed."""
    with contextlib.ExitStack() as guards, contextlib.ExitStack() as ours:
        pipes: dict[str, int] = {}
        ends: dict[str, int] = {}
        for name in ("stdin", "stdout", "stderr", "control", "status"):
            reading, writing = os.pipe()
            if name in ("stdin", "control"):
                pipes[name], ends[name] = writing, reading
            else:
                pipes[name], ends[name] = reading, writing
            ours.callback(os.close, pipes[name])
            guards.callback(os.close, ends[name])
        ends["killed"] = subreaper.open_killed_processes_file()
        if ends["killed"] >= 0:
            guards.callback(os.close, ends["killed"])
        try:
            forked = forked_guard.own()
            is_used = forked is not None and forked.use(list(ends.values()))
            process = forked if forked and is_used else _execute_guard(env, ends)
        except OSError as error:
            raise SpawnFailed(f"the agent's guard: {error}", error.errno) from error
        ours.pop_all()
    return GuardClient(process, pipes)


def _execute_guard(env: Mapping[str, str], ends: Mapping[str, int]) -> subprocess.Popen[bytes]:
    program = os.memfd_create("guard")
    try:
        os.write(program, _PROGRAM)
        numbers = [ends[name] for name in ("control", "status", "killed")]
        return subprocess.Popen(
            [sys.executable, "-I", "-S", f"/proc/self/fd/{program}", *map(str, numbers)],
            stdin=ends["stdin"],
            stdout=ends["stdout"],
            stderr=ends["stderr"],
            bufsize=0,
            cwd="/",
            env=dict(env),
            pass_fds=[number for number in (program, *numbers) if number >= 0],
            start_new_session=True,
            **spawning.child_user_arguments(),
        )
    finally:
        os.close(program)
