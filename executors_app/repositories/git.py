"""Run git for the control plane: a fixed git directory, a fixed environment, and limits on everything that it uses.

No other module of the control plane starts git. Nothing is discovered and nothing is inherited. ``GIT_DIR`` is always
one of our own directories, so the only repository configuration that git reads is what ``bare.py`` wrote; system and
user configuration are switched off. ``SAFE_OPTIONS`` override it once more: a key that runs a program or names another
path must have no effect even if one of our directories was tampered with.

What git reads may have been written by an agent, and so may decide how long git runs, how much memory it takes and
what it writes to stderr. Every call therefore has ``Bounds``, calls that read whole histories wait for a slot, and
what git wrote to stderr is logged and classified, but never shown.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, Final

from executors_app.machine.costly_work import begin_costly_work
from executors_app.machine.git.git_process import (
    CappedOutput,
    git_environment,
    git_executable,
    memory_file,
    read_outputs,
    setting_options,
    subcommand,
)
from executors_app.repositories import git_errors
from executors_app.repositories.git_errors import Cause
from executors_app.repositories.progress import Progress
from executors_app.repositories.slots import NoFreeSlot, Pool, git_slot
from executors_app.wire.errors import RepositoryUnusable

logger = logging.getLogger(__name__)

_ERROR_BYTES: Final = 2000
_MESSAGE_BYTES: Final = 16_000
"""Bytes of what a program writes for people that are kept, beginning from the end."""
_TERM_GRACE: Final = 2.0
"""Seconds in which git may remove its lock files before it is killed."""
ORPHAN_GRACE: Final = 5.0
"""Seconds after its time is over in which a program ends itself, if the process that had to end it was killed."""
_TIME_WAS_OVER: Final = 124
"""Exit code of ``timeout`` when it has ended its program."""

_SAFE_SETTINGS: Final = (
    f"core.hooksPath={os.devnull}",
    f"core.attributesFile={os.devnull}",
    f"core.excludesFile={os.devnull}",
    "core.fsmonitor=false",
    "core.alternateRefsCommand=true",
    "core.fsync=objects,reference",
    "core.fsyncMethod=batch",
    # Files beside the objects that claim to know what a commit reaches. An agent may have written them, and a
    # false claim would leave objects out.
    "core.commitGraph=false",
    "core.multiPackIndex=false",
    "pack.useBitmaps=false",
    "repack.writeBitmaps=false",
    # What keeps git within its memory: windows of packs instead of whole packs, no deltas of big files, one thread.
    "core.packedGitLimit=256m",
    "core.packedGitWindowSize=16m",
    "core.bigFileThreshold=32m",
    "core.deltaBaseCacheLimit=64m",
    "pack.threads=1",
    "pack.windowMemory=128m",
    "pack.deltaCacheSize=64m",
    "gc.auto=0",
    "maintenance.auto=false",
    "submodule.recurse=false",
    "protocol.allow=never",
    "log.showSignature=false",
    "diff.external=",
    "core.quotePath=false",
)
SAFE_OPTIONS: Final = (*setting_options(_SAFE_SETTINGS), "--no-pager")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on one call of git, and on each process that it starts."""

    memory: int
    """Bytes of address space."""
    cpu: int
    """Seconds of CPU time."""
    seconds: float
    """Seconds until it is killed, with everything that it started."""
    output: int
    """Bytes that it may return."""
    file: int
    """Bytes of the longest file that it may write."""
    pool: Pool | None = None
    """Of which slots of the whole installation it needs one; None: it needs none."""


LOOKUP: Final = Bounds(memory=1 << 30, cpu=30, seconds=60.0, output=64 << 20, file=256 << 20)
"""For calls about refs and single objects."""
VIEW: Final = Bounds(memory=1 << 30, cpu=10, seconds=20.0, output=4 << 20, file=0, pool=Pool.VIEW)
"""For what people are shown of saved work."""
CHECK: Final = Bounds(memory=2 << 30, cpu=300, seconds=900.0, output=64 << 20, file=8 << 30, pool=Pool.HEAVY)
"""For indexing and walking what a workspace has sent."""
COPY: Final = Bounds(memory=4 << 30, cpu=1800, seconds=3600.0, output=64 << 20, file=64 << 30, pool=Pool.HEAVY)
"""For copying the whole history of a team's repository."""


class GitFailed(RepositoryUnusable):
    """A git command failed or could not be run."""

    permanent = False

    @property
    def cause(self) -> Cause:
        """Why it failed, as far as git's output tells."""
        return Cause(self.details.get("cause", Cause.UNKNOWN))


class CountedOutput(CappedOutput):
    """Output of a pipe that is counted and not kept."""

    def __init__(self, pipe: IO[bytes] | None, limit: int):
        super().__init__(pipe, limit)
        self.size = 0

    def append(self, data: bytes) -> bool:
        """Count output; return False once there is more than ``limit``."""
        self.size += len(data)
        return self.size <= self.limit


@dataclass(frozen=True, slots=True)
class Git:
    """Runs git on ``directory`` (a git directory of ours); ``objects`` replaces its object directory."""

    directory: Path
    objects: Path | None = None
    account: str = ""
    """Whose heavy calls wait for one another: the team's repository for which git runs."""
    descriptors: tuple[int, ...] = ()
    """Descriptors that git needs: the git directory names files by them."""

    def run(
        self, *arguments: str, stdin: bytes | IO[bytes] = b"", bounds: Bounds = LOOKUP, hold: Sequence[int] = ()
    ) -> bytes:
        """Run git and return what it wrote; raises GitFailed, also if that is more than ``bounds.output`` bytes.

        ``hold`` are descriptors of locks: git keeps them open while it lives, so that a lock outlasts a caller that is
        killed.
        """
        output, more = self._run(arguments, stdin, bounds, hold)
        if more:
            raise GitFailed(f"git {subcommand(arguments)} wrote more than {bounds.output} bytes.", cause=Cause.OUTPUT)
        return output

    def read(self, *arguments: str, limit: int, bounds: Bounds = VIEW) -> bytes:
        """Run git and return the first ``limit`` bytes of what it wrote; raises GitFailed."""
        return self._run(arguments, b"", replace(bounds, output=limit))[0]

    def text(self, *arguments: str, bounds: Bounds = LOOKUP) -> str:
        """``run``, as text without the last line end."""
        return self.run(*arguments, bounds=bounds).decode(errors="surrogateescape").rstrip("\n")

    def count_output(self, *arguments: str, bounds: Bounds, hold: Sequence[int] = ()) -> int:
        """Run git and return how many bytes it wrote, without keeping them.

        Raises GitFailed, also if that is more than ``bounds.output``.
        """
        with self._admit(bounds, hold) as held, memory_file(b"") as source:
            process = self._start(arguments, source, subprocess.PIPE, held, bounds)
            out = CountedOutput(process.stdout, bounds.output)
            _finish([(process, arguments)], [out], time.monotonic() + bounds.seconds)
        if out.size > bounds.output:
            raise GitFailed(f"git {subcommand(arguments)} wrote more than {bounds.output} bytes.", cause=Cause.OUTPUT)
        return out.size

    def write(
        self,
        into: IO[bytes],
        *arguments: str,
        stdin: bytes | IO[bytes],
        bounds: Bounds = COPY,
        hold: Sequence[int] = (),
    ) -> None:
        """Run git with its output going to an open file; raises GitFailed."""
        with self._admit(bounds, hold) as held, _opened(stdin) as source:
            process = self._start(arguments, source, into, held, bounds)
            _finish([(process, arguments)], [], time.monotonic() + bounds.seconds)

    def pipe(
        self,
        arguments: Sequence[str],
        other: Git,
        others: Sequence[str],
        *,
        stdin: bytes,
        hold: Sequence[int],
        bounds: Bounds = COPY,
    ) -> bytes:
        """Run git here, pipe its output to another git, and return that one's output. Raises GitFailed."""
        with self._admit(bounds, hold) as held:
            with memory_file(stdin) as source:
                first = self._start(arguments, source, subprocess.PIPE, held, bounds)
            try:
                second = other._start(others, first.stdout, subprocess.PIPE, held, bounds)
            except GitFailed:
                _end(first)
                raise
            if first.stdout:
                first.stdout.close()  # only the second may hold it, or the first would not notice its end
                first.stdout = None
            out = CappedOutput(second.stdout, bounds.output)
            # The second first, because its error is reported: if it fails, the first only reports a broken pipe.
            _finish([(second, others), (first, arguments)], [out], time.monotonic() + bounds.seconds)
        return bytes(out.data)

    def _run(
        self, arguments: Sequence[str], stdin: bytes | IO[bytes], bounds: Bounds, hold: Sequence[int] = ()
    ) -> tuple[bytes, bool]:
        with self._admit(bounds, hold) as held, _opened(stdin) as source:
            process = self._start(arguments, source, subprocess.PIPE, held, bounds)
            out = CappedOutput(process.stdout, bounds.output)
            _finish([(process, arguments)], [out], time.monotonic() + bounds.seconds)
        return bytes(out.data[: bounds.output]), len(out.data) > bounds.output

    @contextlib.contextmanager
    def _admit(self, bounds: Bounds, hold: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Wait for a slot if the call needs one, and yield all descriptors that git holds. Raises GitFailed."""
        with contextlib.ExitStack() as stack:
            slot: tuple[int, ...] = ()
            if bounds.pool is not None:
                try:
                    slot = stack.enter_context(git_slot(bounds.pool, self.account))
                except NoFreeSlot as error:
                    raise GitFailed(str(error), cause=Cause.BUSY) from error
            yield (*hold, *slot)

    def _start(
        self,
        arguments: Sequence[str],
        stdin: IO[bytes] | None,
        stdout: int | IO[bytes],
        hold: Sequence[int],
        bounds: Bounds,
    ) -> subprocess.Popen[bytes]:
        environment: dict[str, str] = {**_environment(), "GIT_DIR": str(self.directory)}
        environment["GIT_ALLOC_LIMIT"] = str(bounds.memory // 2)
        if self.objects is not None:
            environment["GIT_OBJECT_DIRECTORY"] = str(self.objects)
        return start_limited(
            [git_executable(), *SAFE_OPTIONS, *arguments],
            bounds,
            cwd=self.directory,
            environment=environment,
            stdin=stdin,
            stdout=stdout,
            descriptors=(*hold, *self.descriptors),
        )


def start_limited(
    command: Sequence[str],
    bounds: Bounds,
    *,
    cwd: Path,
    environment: dict[str, str],
    stdin: IO[bytes] | None,
    stdout: int | IO[bytes],
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program under limits, in its own process group. Raises GitFailed."""
    begin_costly_work("git")
    try:
        return subprocess.Popen(
            [*_limited(bounds), *command],
            cwd=cwd,
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            pass_fds=tuple(descriptors),
        )
    except (OSError, ValueError) as error:
        reference = git_errors.log_failure(command[0], str(error), exit_code=None)
        raise GitFailed(f"git could not be started. See {reference} in the log.") from error


def run_limited(command: Sequence[str], bounds: Bounds, *, stdin: IO[bytes], environment: dict[str, str]) -> bytes:
    """Run a helper program under the same limits as git, and return its output. Raises GitFailed."""
    process = start_limited(
        command, bounds, cwd=Path("/"), environment=environment, stdin=stdin, stdout=subprocess.PIPE
    )
    out = CappedOutput(process.stdout, bounds.output)
    _finish([(process, [Path(command[-1]).stem])], [out], time.monotonic() + bounds.seconds)
    return bytes(out.data[: bounds.output])


@dataclass(frozen=True, slots=True)
class FinishedProcess:
    """What a program wrote until it ended, or until its time was over."""

    exit_code: int | None
    """None: it did not finish in time, or wrote too much, and was ended."""
    output: bytes
    errors: bytes
    """The last bytes that it wrote to stderr."""


def git_command(*arguments: str) -> list[str]:
    """Return the command that runs git with our settings, for ``run_to_end``."""
    return [git_executable(), *SAFE_OPTIONS, *arguments]


def run_to_end(
    command: Sequence[str],
    bounds: Bounds,
    *,
    cwd: Path,
    environment: dict[str, str],
    descriptors: Sequence[int] = (),
) -> FinishedProcess:
    """Run a program that waits for other machines, under limits, and return how it ended. Raises GitFailed.

    Unlike git on files of ours, it may do nothing for long, and its failures are for the caller to explain. If we are
    killed, it outlives us by its time at most: it runs below ``timeout``, which ends its whole process group.
    """
    guard = ("timeout", "-k", str(_TERM_GRACE), str(bounds.seconds + ORPHAN_GRACE))
    with memory_file(b"") as stdin:
        process = start_limited(
            [*guard, *command],
            bounds,
            cwd=cwd,
            environment=environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            descriptors=descriptors,
        )
    out, errors = CappedOutput(process.stdout, bounds.output), CappedOutput(process.stderr, -_MESSAGE_BYTES)
    until = time.monotonic() + bounds.seconds
    exit_code: int | None = None
    try:
        if read_outputs([out, errors], until):
            _wait(process, until)
            exit_code = 0
    except TimeoutError:
        pass
    finally:
        _end(process, Path(command[0]).name)
    if exit_code is not None and process.returncode == _TIME_WAS_OVER:
        exit_code = None
    elif exit_code is not None:
        exit_code = process.returncode
    return FinishedProcess(exit_code, bytes(out.data[: bounds.output]), bytes(errors.data))


@contextlib.contextmanager
def _opened(stdin: bytes | IO[bytes]) -> Iterator[IO[bytes]]:
    if not isinstance(stdin, bytes):
        yield stdin
        return
    with memory_file(stdin) as source:
        yield source


def _finish(
    running: Sequence[tuple[subprocess.Popen[bytes], Sequence[str]]], outputs: list[CappedOutput], until: float
) -> None:
    """Wait for the end of all processes, or end them; raises GitFailed for the first that failed."""
    errors = [CappedOutput(process.stderr, -_ERROR_BYTES) for process, _ in running]
    try:
        is_complete = _read_while_working([*outputs, *errors], {process.pid for process, _ in running}, until)
        if is_complete:
            for process, _ in running:
                _wait(process, until)
    except TimeoutError:
        raise GitFailed(f"git {subcommand(running[0][1])} did not finish in time.", cause=Cause.TIME) from None
    finally:
        for process, arguments in running:
            _end(process, subcommand(arguments))
    if not is_complete:
        return
    for (process, arguments), message in zip(running, errors, strict=True):
        if process.returncode:
            raise _failure(arguments, process.returncode, message.text)


def _read_while_working(outputs: Sequence[CappedOutput], groups: Collection[int], until: float) -> bool:
    """Do what ``read_outputs`` does; also raise TimeoutError once the process groups have done nothing for long."""
    progress = Progress(groups)
    while True:
        try:
            return read_outputs(outputs, min(until, progress.next_look))
        except TimeoutError:
            if time.monotonic() >= until or progress.is_idle():
                raise


def _failure(arguments: Sequence[str], exit_code: int, text: str) -> GitFailed:
    """Return the error for a call that failed: the sentence of its cause, and where its output is logged."""
    name = subcommand(arguments)
    cause = git_errors.classify(text, exit_code)
    reference = git_errors.log_failure(name, text, exit_code=exit_code)
    return GitFailed(
        f"git {name} failed: {git_errors.describe(cause, text)} See {reference} in the log.",
        exit_code=exit_code,
        cause=cause,
    )


def _wait(process: subprocess.Popen[bytes], until: float) -> None:
    """Wait until a process has ended, without reaping it. Raises TimeoutError."""
    descriptor = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            raise TimeoutError
    finally:
        os.close(descriptor)


def _end(process: subprocess.Popen[bytes], name: str = "") -> None:
    """End a process and everything in its group, reap it, and close its pipes."""
    if process.returncode is None:
        with contextlib.suppress(TimeoutError):
            _wait(process, 0.0)
            _reap(process, name)
    if process.returncode is None:
        _signal_group(process, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            _wait(process, time.monotonic() + _TERM_GRACE)
        _reap(process, name)
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()


def _reap(process: subprocess.Popen[bytes], name: str) -> None:
    # Before the leader is reaped, nobody else can have its id, so the signal reaches only what git has started.
    _signal_group(process, signal.SIGKILL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    logger.debug(
        "git %s ended",
        name,
        extra={
            "exit_code": process.returncode,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "peak_memory_bytes": usage.ru_maxrss << 10,
        },
    )


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _limited(bounds: Bounds) -> list[str]:
    """Return the beginning of a command that starts under these limits.

    A shell sets them: limits set on a running git come too late on a busy machine, and a ``preexec_fn`` is not safe in
    a process with threads. The units are KiB of memory, seconds, and blocks of 512 bytes.
    """
    # Of CPU time, the soft limit is the lower one: it ends git with a signal of its own.
    set_limits = (
        'ulimit -c 0 && ulimit -v "$1" && ulimit -S -t "$2" && ulimit -H -t "$3" && ulimit -f "$4" && '
        'shift 4 && exec "$@"'
    )
    limits = (str(bounds.memory >> 10), str(bounds.cpu), str(bounds.cpu + 1), str(bounds.file >> 9))
    return ["/bin/sh", "-c", set_limits, "sh", *limits]


@cache
def _environment() -> dict[str, str]:
    nowhere = "/nonexistent"
    return {
        **git_environment(),
        "HOME": nowhere,
        "XDG_CONFIG_HOME": nowhere,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "",
        "GIT_PROTOCOL_FROM_USER": "0",
        "GIT_SSH_COMMAND": "false",
        "GIT_ASKPASS": "false",
        "GIT_EDITOR": "false",
        "GIT_PAGER": "cat",
    }
