"""Jobs: scripts that are run in the workspace, each once, whoever dies meanwhile.

The memory knows of each that it was asked for, before it begins; its files say how it ended, written by its own
guard (``job_process``). A job ends with its agentctl, as everything does that agentctl started (rule 25), and none
is ever run a second time: what an earlier agentctl has left is told as it is, and as lost only where neither guard
nor agentctl lived to say it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from executors_app import crash_points
from executors_app.agentctl import adoption, child_environment, identity
from executors_app.agentctl.bell import Bell
from executors_app.agentctl.child_environment import AGENT_MARKER
from executors_app.agentctl.jobs import process
from executors_app.agentctl.jobs.files import JobFiles
from executors_app.agentctl.jobs.job_process import KEPT
from executors_app.agentctl.jobs.records import Records
from executors_app.agentctl.jobs.requests import JobRequest
from executors_app.agentctl.protocol import Code, Job, JobError
from executors_app.agentctl.refusals import Refused, invalid
from executors_app.agentctl.workspace.paths import opened

logger = logging.getLogger(__name__)

MOST_RUNNING: Final = 16
CANCEL_GRACE: Final = 5.0
_CLOSE_GRACE: Final = 1.0
_PATIENCE: Final = 5.0
"""Seconds for a guard beyond what it was given; then it is killed, and its orphans are ended from here."""


class _Live:
    """A job that runs."""

    def __init__(self, request: JobRequest, guard: process.JobProcess, mark: str):
        self._guard, self.mark = guard, mark
        self.why = JobError.LOST
        """Why it ended, if its guard does not live to say it."""
        found = identity.of(guard.pid)
        self.since = found.start_time if found else 0
        self._end_within(request.timeout + request.grace, JobError.TIMEOUT)

    def _end_within(self, seconds: float, why: JobError) -> None:
        self._killer = asyncio.get_running_loop().call_later(seconds + _PATIENCE, self._kill, why)

    def _kill(self, why: JobError) -> None:
        self.why = why
        self._guard.kill()

    def stop(self, grace: float, why: JobError) -> None:
        """Have its guard end it; a guard that does not is killed."""
        self._guard.stop(grace, why)
        self._killer.cancel()
        self._end_within(grace, why)

    async def ended(self) -> None:
        """Until its guard has."""
        await self._guard.wait()
        self._killer.cancel()


class Jobs:
    """The jobs of one execution; made inside a running loop."""

    def __init__(self, root: Path, records: Records, marker: Mapping[str, str]):
        self._root, self._records, self._marker = root, records, marker
        self._live: dict[str, _Live] = {}
        self._following: set[asyncio.Task[None]] = set()
        self._bell = Bell()
        self._closed = False

    @property
    def running(self) -> int:
        """How many run."""
        return len(self._live)

    def start(self, request: JobRequest) -> Job:
        """Start it, unless it was started before; how far it has come. Raises Refused, OSError for a full disk."""
        digest = self._records.digest(request.job_id)
        if digest is None:
            self._begin(request)
        elif digest != request.digest:
            raise Refused(Code.CONFLICT, "this id is another request's", job_id=request.job_id)
        return self._answer(request.job_id, KEPT)

    async def cancel(self, job_id: str) -> Job:
        """End its tree, and answer its end; raises Refused."""
        if live := self._live.get(job_id):
            live.stop(CANCEL_GRACE, JobError.CANCELLED)
        return await self.report(job_id, CANCEL_GRACE + 2 * _PATIENCE, KEPT)

    async def report(self, job_id: str, wait: float, tail: int) -> Job:
        """How far it has come once it has ended, at the latest after ``wait`` seconds; raises Refused."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._bell.until(lambda: job_id not in self._live)
        return self._answer(job_id, tail)

    async def close(self) -> None:
        """End all that run; none begins any more."""
        self._closed = True
        for live in self._live.values():
            live.stop(_CLOSE_GRACE, JobError.AGENTCTL_ENDED)
        await asyncio.gather(*self._following)

    def _answer(self, job_id: str, tail: int) -> Job:
        return self._records.answer(job_id, tail, is_running=job_id in self._live)

    def _begin(self, request: JobRequest) -> None:
        if self._closed:
            raise Refused(Code.NOT_RUNNING, "this agentctl is ending")
        if len(self._live) >= MOST_RUNNING:
            raise Refused(Code.BUSY, f"{MOST_RUNNING} scripts run, which is the most at a time")
        with _directory(self._root, request.cwd) as cwd:
            files = self._records.files(request.job_id)
            files.make()
            crash_points.reached("agentctl.job_prepared")
            self._records.begin(request.job_id, request.digest)
            crash_points.reached("agentctl.job_remembered")
            self._spawn(request, cwd, files)
        crash_points.reached("agentctl.job_spawned")

    def _spawn(self, request: JobRequest, cwd: int, files: JobFiles) -> None:
        mark = uuid.uuid4().hex
        env = child_environment.build(request.environment, {**self._marker, AGENT_MARKER: mark})
        try:
            with files.opened() as descriptors:
                guard = process.start(request, cwd, env, self._marker, descriptors)
        except OSError as error:
            logger.warning("the guard of a job cannot be started: %s", error)
            self._records.write_end(request.job_id, JobError.SPAWN_FAILED)
            self._records.ended(request.job_id)
            return
        live = self._live[request.job_id] = _Live(request, guard, mark)
        task = asyncio.create_task(self._follow(request.job_id, live), name="job")
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _follow(self, job_id: str, live: _Live) -> None:
        """To its end, which is written here only where its guard was killed."""
        await live.ended()
        files = self._records.files(job_id)
        if files.end() is None:
            await adoption.end_orphans(live.mark, live.since)
            self._records.write_end(job_id, live.why if files.has_begun else JobError.SPAWN_FAILED)
        crash_points.reached("agentctl.job_ended")
        del self._live[job_id]
        self._records.ended(job_id)
        self._bell.ring()


@contextlib.contextmanager
def _directory(root: Path, path: str) -> Iterator[int]:
    """A descriptor of a directory of the workspace, by the same guard as files; Refused."""
    if not root.is_dir():
        raise Refused(Code.WORKTREE_MISSING, "the directory of the workspace is not there any more")
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(opened(root, path, os.O_DIRECTORY))
        except Refused as error:
            if error.code != Code.NOT_FOUND:
                raise
            raise invalid("cwd is no directory of the workspace", field="cwd", path=path) from error
