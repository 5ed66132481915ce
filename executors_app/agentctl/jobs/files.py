"""The directory of one job: its recent output, and how it ended."""

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

from executors_app.agentctl.process.job_process import BEGUN, ENDED, HEAD_BYTES, KEPT_BYTES, end_line
from executors_app.agentctl.state_files import sync_directory, write_all
from executors_app.wire.exhaustion import raise_if_exhausted, suppress_absence
from executors_app.wire.protocol import JobError, JobState

_RESERVE_BYTES: Final = 4096
"""Bytes that are allocated in each file before a job starts, so that its end can be written on a full disk."""
_LOCK_POLL: Final = 0.02
_INNER_BYTES: Final = bytes(range(0x80, 0xC0))
"""UTF-8 continuation bytes."""
END_FILE: Final = "end"
STREAMS: Final = ("stdout", "stderr")
_SPARE: Final = "spare"
"""Name of the directory that is prepared for the next job; those of jobs are hashes."""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended: the part of its record that is never deleted."""

    exit_code: int | None
    error: str
    stream_bytes: tuple[int, int]
    """Total bytes written to stdout and stderr."""
    is_incomplete: bool
    at: float

    @property
    def state(self) -> JobState:
        """``LOST`` if the result is unknown, else ``ENDED``."""
        if self.error == JobError.LOST:
            return JobState.LOST
        return JobState.ENDED

    def to_json(self) -> list[Any]:
        """Return plain JSON values."""
        return [self.exit_code, self.error, self.stream_bytes, self.is_incomplete, self.at]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> JobEnd:
        """Return the record from the result of ``to_json``."""
        exit_code, error, stream_bytes, lost_output, at = values
        return cls(exit_code, error, (stream_bytes[0], stream_bytes[1]), lost_output, at)


def jobs_directory(state_dir: Path) -> Path:
    """Return the directory of all jobs, one directory each."""
    return state_dir / "jobs"


def job_directory_name(job_id: str) -> str:
    """Return a job's directory name: a hash, because ids may contain any character."""
    return hashlib.sha256(job_id.encode()).hexdigest()[:40]


class JobFiles:
    """The directory of one job."""

    def __init__(self, directory: Path):
        self.directory = directory

    def create(self) -> None:
        """Create the directory with the space that an end record needs; raises OSError, and then leaves nothing."""
        self.remove()
        try:
            self.directory.with_name(_SPARE).rename(self.directory)
        except OSError:
            self._create_files()

    def prepare_next(self) -> None:
        """Create the directory of the next job, which then starts sooner: creating files takes a while."""
        spare = JobFiles(self.directory.with_name(_SPARE))
        if not spare.directory.exists():
            with contextlib.suppress(OSError):
                spare._create_files()

    def _create_files(self) -> None:
        try:
            self.directory.mkdir(mode=0o700, parents=True)
            for name in (END_FILE, *STREAMS):
                self._reserve(name)
        except OSError:
            self.remove()
            raise

    def _reserve(self, name: str) -> None:
        fd = os.open(self.directory / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, _RESERVE_BYTES)
        finally:
            os.close(fd)

    def sync_names(self) -> None:
        """Sync the names of the files, whose contents the guard syncs. Raises OSError.

        After the record of the request, whose sync has usually written them, too. If the power fails between the two,
        the job has a record and no files, and is reported as lost.
        """
        sync_directory(self.directory)
        sync_directory(self.directory.parent)

    def remove(self) -> None:
        """Delete the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)

    @contextlib.contextmanager
    def open_files(self) -> Iterator[list[int]]:
        """Open the end file and both streams; a guard that inherits the end file keeps its lock. Raises OSError."""
        with contextlib.ExitStack() as stack:
            found = []
            for name in (END_FILE, *STREAMS):
                found.append(os.open(self.directory / name, os.O_RDWR | os.O_CLOEXEC))
                stack.callback(os.close, found[-1])
            fcntl.flock(found[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield found

    @property
    def is_guarded(self) -> bool:
        """Whether the job's guard process is running."""
        with suppress_absence(), (self.directory / END_FILE).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    # -- the end -----------------------------------------------------------------------------

    @property
    def has_begun(self) -> bool:
        """Whether the script may have run; also True if the directory is gone, as that is unknown then."""
        lines = self._lines()
        return lines is None or any(line.startswith(BEGUN) for line in lines)

    def end(self) -> JobEnd | None:
        """Return how the job ended, if that was written."""
        return next((_parse_end(line) for line in self._lines() or () if line.startswith(ENDED)), None)

    def write_end(self, error: JobError) -> None:
        """Write the end record for a guard that could not; raises OSError."""
        line, written = end_line(None, error, list(self.stream_totals()), time.time()), b"".join(self._lines() or ())
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.directory / END_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, line, len(written))  # a line that a kill left incomplete is overwritten
            os.fsync(fd)
        finally:
            os.close(fd)

    def _lines(self) -> list[bytes] | None:
        """Return the complete lines of the end file; None if it cannot be read."""
        try:
            content = (self.directory / END_FILE).read_bytes()
        except OSError as error:
            raise_if_exhausted(error)
            return None
        return [line for line in content.partition(b"\0")[0].splitlines(keepends=True) if line.endswith(b"\n")]

    # -- output ------------------------------------------------------------------------------

    @staticmethod
    def readable_bytes(tail: int) -> int:
        """Return how many of ``tail`` requested bytes are stored at most."""
        return min(tail, KEPT_BYTES)

    def stream_totals(self) -> tuple[int, int]:
        """Return the total bytes of each stream so far."""
        return self._stream_total(STREAMS[0]), self._stream_total(STREAMS[1])

    def tail(self, name: str, most: int, total: int) -> str:
        """Return the last ``most`` of a stream's ``total`` bytes, as text that a database can store."""
        length = min(total, self.readable_bytes(most))
        start = (total - length) % KEPT_BYTES
        with contextlib.suppress(OSError), (self.directory / name).open("rb") as file:
            fd = file.fileno()
            first = os.pread(fd, min(length, KEPT_BYTES - start), HEAD_BYTES + start)
            return _decode_tail(first + os.pread(fd, length - len(first), HEAD_BYTES), is_cut=length < total)
        return ""

    def tails(self, totals: tuple[int, int], most: int) -> tuple[str, str]:
        """Return the last ``most`` bytes of stdout and stderr."""
        stdout, stderr = STREAMS
        return self.tail(stdout, most, totals[0]), self.tail(stderr, most, totals[1])

    def _stream_total(self, name: str) -> int:
        with suppress_absence(), (self.directory / name).open("rb") as file:
            head = file.read(HEAD_BYTES)
            if head.isdigit():
                return int(head)
            return 0
        return 0


async def wait_for_guards(state_dir: Path, within: float = 10.0) -> None:
    """Wait until the guards that an earlier agentctl left have ended their jobs, which they do when it dies."""
    until = time.monotonic() + within
    guarded = all_jobs(state_dir)
    while (guarded := [files for files in guarded if files.is_guarded]) and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(_LOCK_POLL)


def all_jobs(state_dir: Path) -> list[JobFiles]:
    """Return the directory of every job that has one, and of the one that is prepared."""
    directory = jobs_directory(state_dir)
    if not directory.is_dir():
        return []
    return [JobFiles(path) for path in directory.iterdir()]


def _parse_end(line: bytes) -> JobEnd | None:
    try:
        _, code, error, stdout, stderr, lost, at = line.decode().split()
        exit_code = None
        if code != "-":
            exit_code = int(code)
        if error == "-":
            error = ""
        return JobEnd(exit_code, error, (int(stdout), int(stderr)), lost == "1", float(at))
    except ValueError:
        return None


def _decode_tail(data: bytes, *, is_cut: bool) -> str:
    if is_cut:  # possibly in the middle of a character
        data = data[:3].lstrip(_INNER_BYTES) + data[3:]
    return data.decode("utf-8", "replace").replace("\0", "\ufffd")
