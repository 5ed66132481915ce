"""What is kept of one job on the disk, beside the memory's word that it was asked for; ``job_process`` writes it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.durable_files import sync_directory, write_all
from executors_app.agentctl.jobs.job_process import BEGUN, ENDED, HEAD, KEPT, end_line
from executors_app.agentctl.protocol import JobError, JobState

_RESERVE: Final = 4096
"""Bytes of each file that are had from the disk before a job begins: its end can be written on a full one."""
_LOCK_POLL: Final = 0.02
_INNER_BYTES: Final = bytes(range(0x80, 0xC0))
"""Of a character in UTF-8, all but the first."""
END: Final = "end"
STREAMS: Final = ("stdout", "stderr")


@dataclass(frozen=True, slots=True)
class End:
    """How a job ended; all that is kept of it for ever."""

    exit_code: int | None
    error: str
    said: tuple[int, int]
    """Bytes that each stream said."""
    lost_output: bool
    at: float

    @property
    def state(self) -> JobState:
        """Only what nobody can know is lost."""
        return JobState.LOST if self.error == JobError.LOST else JobState.ENDED

    def to_json(self) -> list[Any]:
        """As plain JSON values."""
        return [self.exit_code, self.error, self.said, self.lost_output, self.at]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> End:
        """Back from ``to_json``."""
        exit_code, error, said, lost_output, at = values
        return cls(exit_code, error, (said[0], said[1]), lost_output, at)


def jobs_directory(state_dir: Path) -> Path:
    """Where the jobs of a state directory lie, one directory each."""
    return state_dir / "jobs"


def name_of(job_id: str) -> str:
    """A job's directory: an id may hold anything."""
    return hashlib.sha256(job_id.encode()).hexdigest()[:40]


class JobFiles:
    """The directory of one job."""

    def __init__(self, directory: Path):
        self.directory = directory

    def make(self) -> None:
        """Make it with all the room that an end needs; OSError, and nothing is left then."""
        self.remove()
        try:
            self.directory.mkdir(mode=0o700, parents=True)
            for name in (END, *STREAMS):
                self._reserve(name)
            sync_directory(self.directory)
            sync_directory(self.directory.parent)
        except OSError:
            self.remove()
            raise

    def _reserve(self, name: str) -> None:
        fd = os.open(self.directory / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, _RESERVE)
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove(self) -> None:
        """Let go of it."""
        shutil.rmtree(self.directory, ignore_errors=True)

    @contextlib.contextmanager
    def opened(self) -> Iterator[list[int]]:
        """Descriptors of the end and of both streams; who gets a copy of the end's holds its lock. Raises OSError."""
        with contextlib.ExitStack() as stack:
            found = []
            for name in (END, *STREAMS):
                found.append(os.open(self.directory / name, os.O_RDWR | os.O_CLOEXEC))
                stack.callback(os.close, found[-1])
            fcntl.flock(found[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield found

    @property
    def is_guarded(self) -> bool:
        """Whether the process that guards the job lives."""
        with contextlib.suppress(OSError), (self.directory / END).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    # -- the end -----------------------------------------------------------------------------

    @property
    def has_begun(self) -> bool:
        """Whether there may have been a script: with the directory gone, nobody knows."""
        lines = self._lines()
        return lines is None or any(line.startswith(BEGUN) for line in lines)

    def end(self) -> End | None:
        """How it ended, if that is written."""
        return next((_end_of(line) for line in self._lines() or () if line.startswith(ENDED)), None)

    def write_end(self, error: JobError) -> None:
        """Write it in the place of a process that did not; OSError."""
        line, kept = end_line(None, error, list(self.said()), time.time()), b"".join(self._lines() or ())
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.directory / END, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, line, len(kept))
            os.fsync(fd)
        finally:
            os.close(fd)

    def _lines(self) -> list[bytes] | None:
        """Every whole line of the end; None where it is not there, or cannot be read."""
        try:
            content = (self.directory / END).read_bytes()
        except OSError:
            return None
        return [line for line in content.partition(b"\0")[0].splitlines(keepends=True) if line.endswith(b"\n")]

    # -- what it said ------------------------------------------------------------------------

    @staticmethod
    def most(tail: int) -> int:
        """Bytes of a stream that can be had of so many that are wanted."""
        return min(tail, KEPT)

    def said(self) -> tuple[int, int]:
        """Bytes that each stream has said until now."""
        return self._said(STREAMS[0]), self._said(STREAMS[1])

    def tail(self, name: str, most: int, said: int) -> str:
        """The last ``most`` bytes of a stream, of so many that were ``said``, as text that every database takes."""
        length = min(said, self.most(most))
        start = (said - length) % KEPT
        with contextlib.suppress(OSError), (self.directory / name).open("rb") as file:
            fd = file.fileno()
            first = os.pread(fd, min(length, KEPT - start), HEAD + start)
            return _text(first + os.pread(fd, length - len(first), HEAD), is_cut=length < said)
        return ""

    def _said(self, name: str) -> int:
        with contextlib.suppress(OSError), (self.directory / name).open("rb") as file:
            head = file.read(HEAD)
            return int(head) if head.isdigit() else 0
        return 0


async def wait_for_guards(state_dir: Path, within: float = 10.0) -> None:
    """Until every job that an earlier agentctl has left is ended and its end written: its guard does so at once."""
    directory, until = jobs_directory(state_dir), time.monotonic() + within
    left = [JobFiles(path) for path in directory.iterdir()] if directory.is_dir() else []
    while (left := [files for files in left if files.is_guarded]) and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(_LOCK_POLL)


def _end_of(line: bytes) -> End | None:
    try:
        _, code, why, stdout, stderr, lost, at = line.decode().split()
        error = "" if why == "-" else why
        exit_code = None if code == "-" else int(code)
        return End(exit_code, error, (int(stdout), int(stderr)), lost == "1", float(at))
    except ValueError:
        return None


def _text(data: bytes, *, is_cut: bool) -> str:
    if is_cut:  # in the middle of a character, perhaps
        data = data[:3].lstrip(_INNER_BYTES) + data[3:]
    return data.decode("utf-8", "replace").replace("\0", "\ufffd")
