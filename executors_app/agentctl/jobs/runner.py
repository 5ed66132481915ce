"""Run jobs: scripts in the workspace, each at most once, each under its own guard process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.jobs.files import JobFiles
from executors_app.agentctl.jobs.guards import GuardProcess, start_guard
from executors_app.agentctl.jobs.records import JobRecords
from executors_app.agentctl.jobs.requests import JobRequest, parse_job_request
from executors_app.agentctl.process import subreaper
from executors_app.agentctl.process.async_io import StateNotifier, wait_for_end
from executors_app.agentctl.process.job_process import KEPT_BYTES
from executors_app.agentctl.workspace.paths import open_path
from executors_app.machine import crash_points
from executors_app.machine.process import identity, spawning
from executors_app.machine.process.spawning import AGENT_MARKER
from executors_app.wire.protocol import ApiError, Code, Job, JobError, validation_error

logger = logging.getLogger(__name__)

MAX_RUNNING: Final = 16
CANCEL_GRACE: Final = 5.0
_CLOSE_GRACE: Final = 1.0
_SPARE_DELAY: Final = 0.002
"""Seconds after a job's end, in which it is reported, until the files of the next job are prepared."""
_GUARD_TIMEOUT: Final = 5.0
"""Seconds beyond a guard's own limits after which it is killed, and its orphans are ended from here."""


class _RunningJob:
    """A running job and its guard."""

    def __init__(self, request: JobRequest, process: GuardProcess, control: int, mark: str):
        self._process, self._control, self.mark = process, control, mark
        self.reason = JobError.LOST
        """The job's error if its guard dies before it writes one."""
        self.start_time = 0
        if found := identity.identify(process.pid):
            self.start_time = found.start_time
        self._end_within(request.timeout + request.grace, JobError.TIMEOUT)

    def _end_within(self, seconds: float, why: JobError) -> None:
        self._kill_timer = asyncio.get_running_loop().call_later(seconds + _GUARD_TIMEOUT, self._kill, why)

    def _kill(self, why: JobError) -> None:
        """Kill a guard that does not respond; the script dies with it."""
        self.reason = why
        self._process.kill()

    def stop(self, grace: float, why: JobError) -> None:
        """Let the guard send TERM to the script's tree, and KILL after ``grace`` seconds; ``why`` becomes its error."""
        with contextlib.suppress(OSError):
            os.write(self._control, f"stop {grace:.3f} {why}\n".encode())
        self._kill_timer.cancel()
        self._end_within(grace, why)

    async def wait(self) -> None:
        """Wait until the guard has ended, and with it the whole job."""
        await wait_for_end(self._process.pid)
        self._process.wait()
        control, self._control = self._control, -1
        os.close(control)
        self._kill_timer.cancel()


class JobRunner:
    """The jobs of one execution; create it in a running event loop."""

    def __init__(self, root: Path, records: JobRecords, marker: Mapping[str, str]):
        self._root, self._records, self._marker = root, records, marker
        self._running: dict[str, _RunningJob] = {}
        self._following: set[asyncio.Task[None]] = set()
        self._changes = StateNotifier()
        self._closed = False

    @property
    def running_count(self) -> int:
        """Number of running jobs."""
        return len(self._running)

    def start_requested(self, body: Mapping[str, Any]) -> str:
        """Start the job that the body of ``POST /jobs`` describes, and return its id; raises ApiError."""
        request = parse_job_request(body)
        self.start(request)
        return request.job_id

    def start(self, request: JobRequest) -> None:
        """Start a job unless its id was used before. Raises ApiError, and OSError for a full disk."""
        digest = self._records.digest(request.job_id)
        if digest is None:
            self._begin(request)
        elif digest != request.digest:
            raise ApiError(Code.CONFLICT, "this job id was used by a different request", job_id=request.job_id)

    async def cancel(self, job_id: str) -> Job:
        """End a job and report its end; raises ApiError."""
        if live := self._running.get(job_id):
            live.stop(CANCEL_GRACE, JobError.CANCELLED)
        return await self.report(job_id, CANCEL_GRACE + 2 * _GUARD_TIMEOUT, KEPT_BYTES)

    async def report(self, job_id: str, wait: float, tail: int) -> Job:
        """Report a job once it has ended, at the latest after ``wait`` seconds; raises ApiError."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._changes.wait_for(lambda: job_id not in self._running)
        return self._report(job_id, tail)

    async def close(self) -> None:
        """End all running jobs and accept no more."""
        self._closed = True
        for live in self._running.values():
            live.stop(_CLOSE_GRACE, JobError.AGENTCTL_ENDED)
        await asyncio.gather(*self._following)

    def _report(self, job_id: str, tail: int) -> Job:
        return self._records.report(job_id, tail, is_running=job_id in self._running)

    def _begin(self, request: JobRequest) -> None:
        if self._closed:
            raise ApiError(Code.NOT_RUNNING, "this agentctl is ending")
        if len(self._running) >= MAX_RUNNING:
            raise ApiError(Code.BUSY, f"at most {MAX_RUNNING} scripts may run at the same time")
        with _open_directory(self._root, request.cwd) as cwd:
            files = self._records.files_of(request.job_id)
            # The record before the process: after a crash between the two, the job counts as asked for and is
            # never started a second time.
            files.create()
            crash_points.reached("agentctl.job_prepared")
            self._records.record_request(request.job_id, request.digest)
            crash_points.reached("agentctl.job_remembered")
            self._spawn(request, cwd, files)
        crash_points.reached("agentctl.job_spawned")

    def _spawn(self, request: JobRequest, cwd: int, files: JobFiles) -> None:
        mark = uuid.uuid4().hex
        env = spawning.build_environment(request.environment, {**self._marker, AGENT_MARKER: mark})
        try:
            files.sync_names()
            with files.open_files() as descriptors:
                process, control = start_guard(request, cwd, env, self._marker, descriptors)
        except OSError as error:
            logger.warning("the guard of a job cannot be started: %s", error)
            self._records.write_end(request.job_id, JobError.SPAWN_FAILED)
            self._records.mark_ended(request.job_id)
            return
        live = self._running[request.job_id] = _RunningJob(request, process, control, mark)
        task = asyncio.create_task(self._follow(request.job_id, live), name="job")
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _follow(self, job_id: str, live: _RunningJob) -> None:
        """Wait for a job's end; write it here only if its guard was killed before it could."""
        await live.wait()
        files = self._records.files_of(job_id)
        if files.end() is None:
            # First end what the killed guard has left, so that the job has really ended when its end is recorded.
            await subreaper.end_orphans(live.mark, live.start_time)
            reason = live.reason
            if not files.has_begun:
                reason = JobError.SPAWN_FAILED
            self._records.write_end(job_id, reason)
        crash_points.reached("agentctl.job_ended")
        del self._running[job_id]
        self._records.mark_ended(job_id)
        self._changes.notify()
        asyncio.get_running_loop().call_later(_SPARE_DELAY, self._prepare_next, files)

    def _prepare_next(self, files: JobFiles) -> None:
        if not self._closed:
            files.prepare_next()


@contextlib.contextmanager
def _open_directory(root: Path, path: str) -> Iterator[int]:
    """Open a directory of the workspace, confined like files; raises ApiError."""
    if not root.is_dir():
        raise ApiError(Code.WORKTREE_MISSING, "the directory of the workspace no longer exists")
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(open_path(root, path, os.O_DIRECTORY))
        except ApiError as error:
            if error.code != Code.NOT_FOUND:
                raise
            raise validation_error("cwd is not a directory of the workspace", field="cwd", path=path) from error
