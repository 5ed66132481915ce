"""What is kept of jobs: the memory's word that one was asked for, and its files, while its output is kept."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.jobs.files import STREAMS, End, JobFiles, jobs_directory, name_of
from executors_app.agentctl.memory import Memory
from executors_app.agentctl.protocol import Code, Job, JobError, JobState
from executors_app.agentctl.refusals import Refused

logger = logging.getLogger(__name__)

MOST_KEPT: Final = 100
"""Ended jobs whose output is kept; of older ones only how they ended."""
_TOPIC: Final = "job"
_UNKNOWN: Final = End(None, JobError.LOST, (0, 0), lost_output=True, at=0.0)


class Records:
    """Over the state directory of one execution; nothing of an earlier agentctl may live any more."""

    def __init__(self, state_dir: Path, memory: Memory):
        self._directory, self._memory = jobs_directory(state_dir), memory
        self._ended = self._settled()
        self._forget_old()

    def digest(self, job_id: str) -> str | None:
        """Of the request that it was asked for with; None where there is no such job."""
        known = self._memory.recall(_TOPIC, job_id)
        return known["digest"] if known else None

    def begin(self, job_id: str, digest: str) -> None:
        """It is asked for: on the disk when this returns. Raises OSError."""
        self._memory.keep(_TOPIC, job_id, {"digest": digest, "started_at": _iso(time.time())})

    def files(self, job_id: str) -> JobFiles:
        """Its directory, which need not be there."""
        return JobFiles(self._directory / name_of(job_id))

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
            "ended_at": _iso(end.at) if end else None,
        }

    def _known(self, job_id: str) -> dict[str, Any]:
        known: dict[str, Any] | None = self._memory.recall(_TOPIC, job_id)
        if known is None:
            raise Refused(Code.JOB_UNKNOWN, "there is no job of this id", job_id=job_id)
        return known

    def _end(self, job_id: str) -> End:
        kept = self._known(job_id).get("end")
        return End.from_json(kept) if kept else self.files(job_id).end() or _UNKNOWN

    def _settled(self) -> list[str]:
        """Say of each job of an earlier agentctl how it ended; those with output, the oldest end first."""
        left = [job_id for job_id, known in self._memory.known(_TOPIC).items() if "end" not in known]
        self._remove_strangers({name_of(job_id) for job_id in left})
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
            while len(self._ended) > MOST_KEPT:
                job_id = self._ended[0]
                end = self._end(job_id)
                end = replace(end, lost_output=end.lost_output or any(end.said))
                self._memory.keep(_TOPIC, job_id, {**self._known(job_id), "end": end.to_json()})
                self.files(job_id).remove()
                del self._ended[0]
        except OSError as error:
            logger.warning("the end of a job cannot be moved: %s", error)


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
