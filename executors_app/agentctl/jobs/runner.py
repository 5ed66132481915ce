"""Run jobs, which are scripts in the workspace, each at most once.

Checked requests, the client of a job's guard process, and all jobs of one execution.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import io
import logging
import marshal
import os
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from executors_app import crash_points
from executors_app.agentctl.http.request_schemas import parse_environment, parse_identifier, parse_seconds, parse_text
from executors_app.agentctl.jobs.store import JobFiles, JobRecords
from executors_app.agentctl.process import (
    child_environment,
    guard_process,
    identity,
    job_process,
    privilege_drop,
    subreaper,
)
from executors_app.agentctl.process.async_io import StateNotifier, wait_for_end
from executors_app.agentctl.process.child_environment import AGENT_MARKER
from executors_app.agentctl.process.job_process import KEPT_BYTES
from executors_app.agentctl.protocol import ApiError, Code, Job, JobError, validation_error
from executors_app.agentctl.workspace.files import open_path

MAX_SCRIPT_BYTES: Final = 127 << 10
"""Bytes; a system takes 128 KiB in one argument."""
DEFAULT_TIMEOUT: Final = 600.0
MAX_TIMEOUT: Final = 86_400.0
DEFAULT_GRACE: Final = 5.0
MAX_GRACE: Final = 60.0


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A script and what it is to be run with; ``cwd`` is relative to the workspace, times are seconds."""

    job_id: str
    script: str
    environment: Mapping[str, str]
    cwd: str
    timeout: float
    grace: float

    @property
    def digest(self) -> str:
        """What two requests of one job have in common; the environment, which may hold secrets, is not kept."""
        return hashlib.sha256(orjson.dumps(asdict(self), option=orjson.OPT_SORT_KEYS)).hexdigest()


def parse_job_request(body: Mapping[str, Any]) -> JobRequest:
    """The body of ``POST /jobs``; Refused."""
    return JobRequest(
        job_id=_parse_job_id(body),
        script=_parse_script(body),
        environment=parse_environment(body, "environment"),
        cwd=parse_text(body, "cwd", "."),
        timeout=parse_seconds(body, "timeout", DEFAULT_TIMEOUT, MAX_TIMEOUT),
        grace=parse_seconds(body, "grace", DEFAULT_GRACE, MAX_GRACE),
    )


def _parse_job_id(body: Mapping[str, Any]) -> str:
    """Any id but those that the path of an address cannot hold."""
    job_id = parse_identifier(body, "job_id")
    if job_id in {".", ".."}:
        raise validation_error("job_id must be more than dots", field="job_id")
    return job_id


def _parse_script(body: Mapping[str, Any]) -> str:
    script = parse_text(body, "script")
    if "\0" in script or len(script.encode()) > MAX_SCRIPT_BYTES:
        message = f"script must have {MAX_SCRIPT_BYTES >> 10} KiB at most, and no U+0000: keep a longer one in a file"
        raise validation_error(message, field="script")
    return script


SHELL: Final = "/bin/sh"
_GUARD_MAIN: Final = f"from {job_process.__name__} import main\nmain()\n"


class JobGuardClient:
    """One guard that was started; ``wait`` for it."""

    def __init__(self, process: subprocess.Popen[bytes], control: int):
        self._process, self._control = process, control

    @property
    def pid(self) -> int:
        """The guard's."""
        return self._process.pid

    def stop(self, grace: float, why: str) -> None:
        """TERM for the script's tree, and KILL after ``grace`` seconds; ``why`` goes into its end."""
        with contextlib.suppress(OSError):
            os.write(self._control, f"stop {grace:.3f} {why}\n".encode())

    def kill(self) -> None:
        """End a guard that does not do its work; the script dies with it."""
        self._process.kill()

    async def wait(self) -> None:
        """Until the guard has ended, and with it all of the job."""
        await wait_for_end(self._process.pid)
        self._process.wait()
        control, self._control = self._control, -1
        os.close(control)


def start_guard(
    request: JobRequest, cwd: int, env: Mapping[str, str], marker: Mapping[str, str], files: Sequence[int]
) -> JobGuardClient:
    """Start a guard with its job; ``cwd`` and ``files`` are open descriptors. Raises OSError."""
    order = marshal.dumps(
        ([SHELL, "-c", request.script], dict(env), f"/proc/self/fd/{cwd}", request.timeout, request.grace)
    )
    with contextlib.ExitStack() as stack:
        program, orders = (stack.enter_context(_memory_file(data)) for data in (_GUARD_PROGRAM, order))
        control_end, control = os.pipe()
        stack.callback(os.close, control_end)
        passed = (control_end, orders, *files)
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", f"/proc/self/fd/{program}", *map(str, passed)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=dict(marker),
                pass_fds=[program, cwd, *passed],
                start_new_session=True,
                **privilege_drop.child_user_arguments(),
            )
        except BaseException:
            os.close(control)
            raise
        return JobGuardClient(process, control)


@contextlib.contextmanager
def _memory_file(data: bytes) -> Iterator[int]:
    descriptor = os.memfd_create("job")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        yield descriptor
    finally:
        os.close(descriptor)


def _guard_archive() -> bytes:
    """The guard's program and the one it is built on, as an archive that Python runs."""
    packages = {"/".join(job_process.__name__.split(".")[:depth]) for depth in (1, 2, 3)}
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w") as archive:
            for package in sorted(packages):
                archive.writestr(f"{package}/__init__.py", "")
            for module in (guard_process, job_process):
                archive.writestr(
                    f"{module.__name__.replace('.', '/')}.pyc", _compile_module(Path(str(module.__file__)))
                )
            archive.writestr("__main__.py", _GUARD_MAIN)
        return buffer.getvalue()


def _compile_module(path: Path) -> bytes:
    code = compile(path.read_bytes(), path.stem, "exec")
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


_GUARD_PROGRAM: Final = _guard_archive()
"""Made once: an upgrade of the package in place must not change the guards of this agentctl (rule 24)."""


logger = logging.getLogger(__name__)

MAX_RUNNING: Final = 16
CANCEL_GRACE: Final = 5.0
_CLOSE_GRACE: Final = 1.0
_GUARD_TIMEOUT: Final = 5.0
"""Seconds for a guard beyond what it was given; then it is killed, and its orphans are ended from here."""


class _RunningJob:
    """A job that runs."""

    def __init__(self, request: JobRequest, guard: JobGuardClient, mark: str):
        self._guard, self.mark = guard, mark
        self.why = JobError.LOST
        """Why it ended, if its guard does not live to say it."""
        found = identity.identify(guard.pid)
        self.since = found.start_time if found else 0
        self._end_within(request.timeout + request.grace, JobError.TIMEOUT)

    def _end_within(self, seconds: float, why: JobError) -> None:
        self._killer = asyncio.get_running_loop().call_later(seconds + _GUARD_TIMEOUT, self._kill, why)

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


class JobRunner:
    """The jobs of one execution; made inside a running loop."""

    def __init__(self, root: Path, records: JobRecords, marker: Mapping[str, str]):
        self._root, self._records, self._marker = root, records, marker
        self._live: dict[str, _RunningJob] = {}
        self._following: set[asyncio.Task[None]] = set()
        self._bell = StateNotifier()
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
            raise ApiError(Code.CONFLICT, "this id is another request's", job_id=request.job_id)
        return self._answer(request.job_id, KEPT_BYTES)

    async def cancel(self, job_id: str) -> Job:
        """End its tree, and answer its end; raises Refused."""
        if live := self._live.get(job_id):
            live.stop(CANCEL_GRACE, JobError.CANCELLED)
        return await self.report(job_id, CANCEL_GRACE + 2 * _GUARD_TIMEOUT, KEPT_BYTES)

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
            raise ApiError(Code.NOT_RUNNING, "this agentctl is ending")
        if len(self._live) >= MAX_RUNNING:
            raise ApiError(Code.BUSY, f"{MAX_RUNNING} scripts run, which is the most at a time")
        with _open_directory(self._root, request.cwd) as cwd:
            files = self._records.files(request.job_id)
            files.make()
            crash_points.reached("agentctl.job_prepared")
            self._records.begin(request.job_id, request.digest)
            crash_points.reached("agentctl.job_remembered")
            self._spawn(request, cwd, files)
        crash_points.reached("agentctl.job_spawned")

    def _spawn(self, request: JobRequest, cwd: int, files: JobFiles) -> None:
        mark = uuid.uuid4().hex
        env = child_environment.build_environment(request.environment, {**self._marker, AGENT_MARKER: mark})
        try:
            with files.opened() as descriptors:
                guard = start_guard(request, cwd, env, self._marker, descriptors)
        except OSError as error:
            logger.warning("the guard of a job cannot be started: %s", error)
            self._records.write_end(request.job_id, JobError.SPAWN_FAILED)
            self._records.ended(request.job_id)
            return
        live = self._live[request.job_id] = _RunningJob(request, guard, mark)
        task = asyncio.create_task(self._follow(request.job_id, live), name="job")
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _follow(self, job_id: str, live: _RunningJob) -> None:
        """To its end, which is written here only where its guard was killed."""
        await live.ended()
        files = self._records.files(job_id)
        if files.end() is None:
            await subreaper.end_orphans(live.mark, live.since)
            self._records.write_end(job_id, live.why if files.has_begun else JobError.SPAWN_FAILED)
        crash_points.reached("agentctl.job_ended")
        del self._live[job_id]
        self._records.ended(job_id)
        self._bell.ring()


@contextlib.contextmanager
def _open_directory(root: Path, path: str) -> Iterator[int]:
    """A descriptor of a directory of the workspace, by the same guard as files; Refused."""
    if not root.is_dir():
        raise ApiError(Code.WORKTREE_MISSING, "the directory of the workspace is not there any more")
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(open_path(root, path, os.O_DIRECTORY))
        except ApiError as error:
            if error.code != Code.NOT_FOUND:
                raise
            raise validation_error("cwd is no directory of the workspace", field="cwd", path=path) from error
