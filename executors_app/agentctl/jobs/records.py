"""The record of each job on disk: that it was requested, and how it ended."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.jobs.files import JobEnd, JobFiles, all_jobs, job_directory_name, jobs_directory
from executors_app.agentctl.state_files import DurableStore
from executors_app.wire.protocol import ApiError, Code, Job, JobError, JobState

logger = logging.getLogger(__name__)

MAX_KEPT: Final = 100
"""Ended jobs whose output is stored; for older ones only how they ended."""
_TOPIC: Final = "job"
_UNKNOWN_END: Final = JobEnd(None, JobError.LOST, (0, 0), is_incomplete=True, at=0.0)


class JobRecords:
    """The jobs in one state directory. Create it only after the processes of an earlier agentctl have ended."""

    def __init__(self, state_dir: Path, memory: DurableStore):
        self._state_dir, self._directory, self._store = state_dir, jobs_directory(state_dir), memory
        self._ended_jobs = self._settle_unfinished()
        self._forget_old()

    def digest(self, job_id: str) -> str | None:
        """Return the digest of a job's request; None if there is no such job."""
        known = self._store.get(_TOPIC, job_id)
        if known is None:
            return None
        return str(known["digest"])

    def record_request(self, job_id: str, digest: str) -> None:
        """Record that a job was requested, on disk when this returns. Raises OSError."""
        self._store.put(_TOPIC, job_id, {"digest": digest, "started_at": _to_iso(time.time())})

    def files_of(self, job_id: str) -> JobFiles:
        """Return a job's directory, which may not exist."""
        return JobFiles(self._directory / job_directory_name(job_id))

    def mark_ended(self, job_id: str) -> None:
        """Record that a job has ended, and delete the output of the oldest if there are too many."""
        self._ended_jobs.append(job_id)
        self._forget_old()

    def write_end(self, job_id: str, why: JobError) -> None:
        """Write a job's end record for a guard that could not."""
        try:
            self.files_of(job_id).write_end(why)
        except OSError as error:
            logger.warning("the end of a job could not be written: %s", error)

    def report(self, job_id: str, tail: int, *, is_running: bool) -> Job:
        """Return the ``protocol.Job`` with at most ``tail`` bytes of each stream; raises ApiError."""
        files, started_at = self.files_of(job_id), self._record_of(job_id)["started_at"]
        if is_running:
            return _running_report(job_id, files, started_at, tail)
        end = self._end(job_id)
        stdout, stderr = files.tails(end.stream_bytes, tail)
        return {
            "job_id": job_id,
            "state": end.state,
            "exit_code": end.exit_code,
            "stdout": stdout,
            "stderr": stderr,
            "truncated": end.is_incomplete or max(end.stream_bytes) > files.readable_bytes(tail),
            "error": end.error,
            "started_at": started_at,
            "ended_at": _to_iso(end.at),
        }

    def _record_of(self, job_id: str) -> dict[str, Any]:
        known: dict[str, Any] | None = self._store.get(_TOPIC, job_id)
        if known is None:
            raise ApiError(Code.JOB_UNKNOWN, "there is no job with this id", job_id=job_id)
        return known

    def _end(self, job_id: str) -> JobEnd:
        archived = self._record_of(job_id).get("end")
        if archived:
            return JobEnd.from_json(archived)
        return self.files_of(job_id).end() or _UNKNOWN_END

    def _settle_unfinished(self) -> list[str]:
        """Write missing ends of an earlier agentctl's jobs; return the jobs with output, oldest end first."""
        unfinished = [job_id for job_id, known in self._store.items_of(_TOPIC).items() if "end" not in known]
        self._remove_unknown({job_directory_name(job_id) for job_id in unfinished})
        for job_id in unfinished:
            files = self.files_of(job_id)
            if files.end() is not None:
                continue
            if files.has_begun:
                self.write_end(job_id, JobError.LOST)
            else:
                self.write_end(job_id, JobError.AGENTCTL_ENDED)
        return sorted(unfinished, key=lambda job_id: self._end(job_id).at)

    def _remove_unknown(self, names: set[str]) -> None:
        """Delete directories of jobs that were prepared but never recorded, or whose output has expired."""
        for files in all_jobs(self._state_dir):
            if files.directory.name not in names:
                files.remove()

    def _forget_old(self) -> None:
        """Reduce the oldest jobs to how they ended; postponed while the disk is full."""
        try:
            while len(self._ended_jobs) > MAX_KEPT:
                job_id = self._ended_jobs[0]
                end = self._end(job_id)
                end = replace(end, is_incomplete=end.is_incomplete or any(end.stream_bytes))
                # The end first, then the files: after a crash in between, the next agentctl removes the files.
                self._store.put(_TOPIC, job_id, {**self._record_of(job_id), "end": end.to_json()})
                self.files_of(job_id).remove()
                del self._ended_jobs[0]
        except OSError as error:
            logger.warning("the output of an old job could not be removed: %s", error)


def _running_report(job_id: str, files: JobFiles, started_at: str, tail: int) -> Job:
    totals = files.stream_totals()
    stdout, stderr = files.tails(totals, tail)
    return {
        "job_id": job_id,
        "state": JobState.RUNNING,
        "exit_code": None,
        "stdout": stdout,
        "stderr": stderr,
        "truncated": max(totals) > files.readable_bytes(tail),
        "error": "",
        "started_at": started_at,
        "ended_at": None,
    }


def _to_iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
