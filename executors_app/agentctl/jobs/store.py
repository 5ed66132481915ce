"""What is kept of jobs on the disk: that one was asked for, its output while it is kept, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.process.job_process import BEGUN, ENDED, HEAD_BYTES, KEPT_BYTES, end_line
from executors_app.agentctl.protocol import ApiError, Code, Job, JobError, JobState
from executors_app.agentctl.state_files import DurableStore, sync_directory, write_all

_RESERVE_BYTES: Final = 4096
"""Bytes of each file that are had from the disk before a job begins: its end can be written on a full one."""
_LOCK_POLL: Final = 0.02
_INNER_BYTES: Final = bytes(range(0x80, 0xC0))
"""Of a character in UTF-8, all but the first."""
END_FILE: Final = "end"
STREAMS: Final = ("stdout", "stderr")


@dataclass(frozen=True, slots=True)
class JobEnd:
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
    def from_json(cls, values: Sequence[Any]) -> JobEnd:
        """Back from ``to_json``."""
        exit_code, error, said, lost_output, at = values
        return cls(exit_code, error, (said[0], said[1]), lost_output, at)


def jobs_directory(state_dir: Path) -> Path:
    """Where the jobs of a state directory lie, one directory each."""
    return state_dir / "jobs"


def job_directory_name(job_id: str) -> str:
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
            for name in (END_FILE, *STREAMS):
                self._reserve(name)
            sync_directory(self.directory)
            sync_directory(self.directory.parent)
        except OSError:
            self.remove()
            raise

    def _reserve(self, name: str) -> None:
        fd = os.open(self.directory / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, _RESERVE_BYTES)
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
            for name in (END_FILE, *STREAMS):
                found.append(os.open(self.directory / name, os.O_RDWR | os.O_CLOEXEC))
                stack.callback(os.close, found[-1])
            fcntl.flock(found[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield found

    @property
    def is_guarded(self) -> bool:
        """Whether the process that guards the job lives."""
        with contextlib.suppress(OSError), (self.directory / END_FILE).open("rb") as file:
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

    def end(self) -> JobEnd | None:
        """How it ended, if that is written."""
        return next((_parse_end(line) for line in self._lines() or () if line.startswith(ENDED)), None)

    def write_end(self, error: JobError) -> None:
        """Write it in the place of a process that did not; OSError."""
        line, kept = end_line(None, error, list(self.said()), time.time()), b"".join(self._lines() or ())
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.directory / END_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, line, len(kept))
            os.fsync(fd)
        finally:
            os.close(fd)

    def _lines(self) -> list[bytes] | None:
        """Every whole line of the end; None where it is not there, or cannot be read."""
        try:
            content = (self.directory / END_FILE).read_bytes()
        except OSError:
            return None
        return [line for line in content.partition(b"\0")[0].splitlines(keepends=True) if line.endswith(b"\n")]

    # -- what it said ------------------------------------------------------------------------

    @staticmethod
    def most(tail: int) -> int:
        """Bytes of a stream that can be had of so many that are wanted."""
        return min(tail, KEPT_BYTES)

    def said(self) -> tuple[int, int]:
        """Bytes that each stream has said until now."""
        return self._said(STREAMS[0]), self._said(STREAMS[1])

    def tail(self, name: str, most: int, said: int) -> str:
        """The last ``most`` bytes of a stream, of so many that were ``said``, as text that every database takes."""
        length = min(said, self.most(most))
        start = (said - length) % KEPT_BYTES
        with contextlib.suppress(OSError), (self.directory / name).open("rb") as file:
            fd = file.fileno()
            first = os.pread(fd, min(length, KEPT_BYTES - start), HEAD_BYTES + start)
            return _decode_tail(first + os.pread(fd, length - len(first), HEAD_BYTES), is_cut=length < said)
        return ""

    def _said(self, name: str) -> int:
        with contextlib.suppress(OSError), (self.directory / name).open("rb") as file:
            head = file.read(HEAD_BYTES)
            return int(head) if head.isdigit() else 0
        return 0


async def wait_for_guards(state_dir: Path, within: float = 10.0) -> None:
    """Until every job that an earlier agentctl has left is ended and its end written: its guard does so at once."""
    directory, until = jobs_directory(state_dir), time.monotonic() + within
    left = [JobFiles(path) for path in directory.iterdir()] if directory.is_dir() else []
    while (left := [files for files in left if files.is_guarded]) and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(_LOCK_POLL)


def _parse_end(line: bytes) -> JobEnd | None:
    try:
        _, code, why, stdout, stderr, lost, at = line.decode().split()
        error = "" if why == "-" else why
        exit_code = None if code == "-" else int(code)
        return JobEnd(exit_code, error, (int(stdout), int(stderr)), lost == "1", float(at))
    except ValueError:
        return None


def _decode_tail(data: bytes, *, is_cut: bool) -> str:
    if is_cut:  # in the middle of a character, perhaps
        data = data[:3].lstrip(_INNER_BYTES) + data[3:]
    return data.decode("utf-8", "replace").replace("\0", "\ufffd")


logger = logging.getLogger(__name__)

MAX_KEPT: Final = 100
"""Ended jobs whose output is kept; of older ones only how they ended."""
_TOPIC: Final = "job"
_UNKNOWN_END: Final = JobEnd(None, JobError.LOST, (0, 0), lost_output=True, at=0.0)


class JobRecords:
    """Over the state directory of one execution; nothing of an earlier agentctl may live any more."""

    def __init__(self, state_dir: Path, memory: DurableStore):
        self._directory, self._memory = jobs_directory(state_dir), memory
        self._ended = self._settled()
        self._forget_old()

    def digest(self, job_id: str) -> str | None:
        """Of the request that it was asked for with; None where there is no such job."""
        known = self._memory.recall(_TOPIC, job_id)
        return known["digest"] if known else None

    def begin(self, job_id: str, digest: str) -> None:
        """It is asked for: on the disk when this returns. Raises OSError."""
        self._memory.keep(_TOPIC, job_id, {"digest": digest, "started_at": _to_iso(time.time())})

    def files(self, job_id: str) -> JobFiles:
        """Its directory, which need not be there."""
        return JobFiles(self._directory / job_directory_name(job_id))

    def ended(self, job_id: str) -> None:
        """It has; the oldest may go for it."""
        self._ended.append(job_id)
        self._forget_old()

    def write_end(self, job_id: str, why: JobError) -> None:
        """Write it in the place of a guard that did not."""
        try:
            self.files(job_id).write_end(why)
        except OSError as error:
            logger.warning("the end of a job cannot be written: %s", error)

    def answer(self, job_id: str, tail: int, *, is_running: bool) -> Job:
        """``protocol.Job``, with so many bytes of each stream; raises Refused."""
        files, started_at = self.files(job_id), self._known(job_id)["started_at"]
        end = None if is_running else self._end(job_id)
        said = end.said if end else files.said()
        stdout, stderr = (files.tail(name, tail, length) for name, length in zip(STREAMS, said, strict=True))
        return {
            "job_id": job_id,
            "state": end.state if end else JobState.RUNNING,
            "exit_code": end.exit_code if end else None,
            "stdout": stdout,
            "stderr": stderr,
            "truncated": bool(end and end.lost_output) or max(said) > files.most(tail),
            "error": end.error if end else "",
            "started_at": started_at,
            "ended_at": _to_iso(end.at) if end else None,
        }

    def _known(self, job_id: str) -> dict[str, Any]:
        known: dict[str, Any] | None = self._memory.recall(_TOPIC, job_id)
        if known is None:
            raise ApiError(Code.JOB_UNKNOWN, "there is no job of this id", job_id=job_id)
        return known

    def _end(self, job_id: str) -> JobEnd:
        kept = self._known(job_id).get("end")
        return JobEnd.from_json(kept) if kept else self.files(job_id).end() or _UNKNOWN_END

    def _settled(self) -> list[str]:
        """Say of each job of an earlier agentctl how it ended; those with output, the oldest end first."""
        left = [job_id for job_id, known in self._memory.known(_TOPIC).items() if "end" not in known]
        self._remove_strangers({job_directory_name(job_id) for job_id in left})
        for job_id in left:
            files = self.files(job_id)
            if files.end() is None:
                self.write_end(job_id, JobError.LOST if files.has_begun else JobError.AGENTCTL_ENDED)
        return sorted(left, key=lambda job_id: self._end(job_id).at)

    def _remove_strangers(self, names: set[str]) -> None:
        """What was prepared for a job that was then not asked for, or whose output is not kept any more."""
        for path in self._directory.iterdir() if self._directory.is_dir() else ():
            if path.name not in names:
                JobFiles(path).remove()

    def _forget_old(self) -> None:
        """Keep of the oldest only how they ended; a full disk puts that off."""
        try:
            while len(self._ended) > MAX_KEPT:
                job_id = self._ended[0]
                end = self._end(job_id)
                end = replace(end, lost_output=end.lost_output or any(end.said))
                self._memory.keep(_TOPIC, job_id, {**self._known(job_id), "end": end.to_json()})
                self.files(job_id).remove()
                del self._ended[0]
        except OSError as error:
            logger.warning("the end of a job cannot be moved: %s", error)


def _to_iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
