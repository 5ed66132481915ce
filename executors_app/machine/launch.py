"""Start the agentctl of an execution on this machine, or find the running one, and wait until it is ready."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import orjson

from executors_app.machine.agentctl_process import SOURCE_ROOT, start_agentctl
from executors_app.machine.bulk_status import StatusTarget, poll_status
from executors_app.machine.git import workspace_root
from executors_app.machine.listeners import AgentctlListener
from executors_app.machine.process import execution_processes, identity, spawning
from executors_app.machine.process.identity import ProcessIdentity
from executors_app.machine.storage import StateDirectory
from executors_app.wire import launch_tokens, socket_urls
from executors_app.wire.errors import AgentctlUnreachable, ExecutorError, LaunchFailed
from executors_app.wire.executions import ExecutionFacts, LaunchSpec
from executors_app.wire.exhaustion import raise_if_exhausted
from executors_app.wire.protocol import EXECUTION_MARKER

READY_TIMEOUT: Final = 60.0
WORKSPACE_TIMEOUT: Final = 600.0
"""Seconds for agentctl to create the worktree, before it listens."""
_POLL: Final = 0.01
_CHECK_INTERVAL: Final = 0.5
_NO_EXTRA: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """The content of agentctl's ready file."""

    url: str
    pid: int


@dataclass(frozen=True, slots=True)
class LocalAgentctl:
    """A running agentctl that accepted our token."""

    url: str
    process: ProcessIdentity
    boot_id: str
    token: str = field(repr=False)
    found: bool


def read_ready_file(directory: StateDirectory) -> ReadyFile | None:
    """Read the ready file; None if it is missing or incomplete."""
    try:
        read = orjson.loads(directory.ready_file.read_bytes())
        return ReadyFile(str(read["url"]), int(read["pid"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise_if_exhausted(error)
        return None


def _workspace_error(directory: StateDirectory) -> ExecutorError | None:
    """Return the error of a failed workspace, which agentctl writes to the ready file instead of its address."""
    try:
        answer = orjson.loads(directory.ready_file.read_bytes())
        if "error" in answer:
            return workspace_root.parse_error(answer)
        return None
    except (OSError, ValueError, TypeError) as error:
        raise_if_exhausted(error)
        return None


async def find_or_start(
    directory: StateDirectory, spec: LaunchSpec, workspace: Path, token: str, extra: Mapping[str, str] = _NO_EXTRA
) -> LocalAgentctl:
    """Return the execution's only agentctl, once it has answered.

    A new one gets ``token``, and ``extra`` in its environment. Raises LaunchFailed, WorkspaceGone, RepositoryUnusable,
    OSError.
    """
    directory.create()
    starting = asyncio.create_task(asyncio.to_thread(_find_or_start, directory, spec, workspace, token, extra))
    try:
        process, found = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # The thread goes on. Who is told that this launch is over, and ends what it has started, must find that.
        await asyncio.wait([starting])
        raise
    return await _wait_until_ready(directory, spec, process, found=found)


def _find_or_start(
    directory: StateDirectory, spec: LaunchSpec, workspace: Path, token: str, extra: Mapping[str, str]
) -> tuple[ProcessIdentity | None, bool]:
    """Return the running process, or start one with this token; and whether it was found.

    The token file is written before the process starts: whoever retries after our death finds both or neither. The
    lock keeps a concurrent start from overwriting the token of a process that has just started.
    """
    with directory.start_lock() as lock:
        found = execution_processes.find_processes(spec.execution_id)
        if found.agentctl:
            return found.agentctl[0], True
        if not found.others and execution_processes.find_processes(spec.execution_id) == found:
            # Twice in a row, because a process may have forked during the first scan. Until the new agentctl can be
            # recognised, the lock keeps others from starting one, so it need not scan itself.
            extra = {**extra, spawning.NO_LEFTOVERS_VARIABLE: "1"}
        directory.write_token(token)
        # The address or the error of the last agentctl must not be taken for those of the new one.
        directory.ready_file.unlink(missing_ok=True)
        return _start(directory, spec, workspace, extra, lock), False


def _start(
    directory: StateDirectory, spec: LaunchSpec, workspace: Path, extra: Mapping[str, str], lock: int
) -> ProcessIdentity | None:
    argv = [sys.executable, "-P", "-m", execution_processes.AGENTCTL_MODULE, "serve"]
    argv += ["--workspace", str(workspace)]
    argv += ["--state-dir", str(directory.path)]
    argv += ["--session-id", spec.session_id]
    if spec.worktree_id:
        argv += ["--worktree-of", spec.worktree_id]
    argv += ["--execution-id", spec.execution_id]
    argv += ["--token-file", str(directory.token_file)]
    argv += ["--seed", str(directory.seed_file)]
    argv += ["--ready-file", str(directory.ready_file)]
    argv += ["--listen", socket_urls.unix_url(directory.socket)]
    marker = {EXECUTION_MARKER: spec.execution_id, spawning.SESSION_VARIABLE: spec.session_id}
    environment = spawning.build_environment({"PYTHONPATH": str(SOURCE_ROOT), **extra}, marker)
    try:
        return identity.identify(start_agentctl(argv, environment, directory.log_file, lock))
    except ValueError as error:
        raise LaunchFailed(f"agentctl could not be started: {error}") from error


async def _wait_until_ready(
    directory: StateDirectory, spec: LaunchSpec, process: ProcessIdentity | None, *, found: bool
) -> LocalAgentctl:
    """Poll the ready file until the agentctl that it names has answered as ours."""
    deadline = time.monotonic() + WORKSPACE_TIMEOUT + READY_TIMEOUT
    next_look = time.monotonic() + _CHECK_INTERVAL
    problem = "it did not report its address"
    while time.monotonic() < deadline:
        ready = read_ready_file(directory)
        if ready is not None and execution_processes.is_agentctl(ready.pid, spec.execution_id):
            try:
                return await _poll_ready(directory, ready, spec, found=found)
            except AgentctlUnreachable as error:
                problem = error.message
            except ExecutorError as error:
                raise LaunchFailed(f"This session's agentctl rejected the control plane: {error.message}") from error
        if time.monotonic() > next_look:
            process = await _current_process(directory, spec, process)
            next_look = time.monotonic() + _CHECK_INTERVAL
        await asyncio.sleep(_POLL)
    raise LaunchFailed(f"agentctl was not ready within {READY_TIMEOUT:g} s: {problem}.")


async def _poll_ready(directory: StateDirectory, ready: ReadyFile, spec: LaunchSpec, *, found: bool) -> LocalAgentctl:
    process, token = identity.identify(ready.pid), directory.token()
    target = StatusTarget(spec.execution_id, ready.url, token, listener=AgentctlListener(ready.url, process))
    status = await poll_status(target, 5.0)
    if process is None or not identity.is_alive(process):
        raise AgentctlUnreachable("agentctl ended right after it had answered")
    return LocalAgentctl(ready.url, process, str(status.get("boot_id", "")), token, found)


async def _current_process(
    directory: StateDirectory, spec: LaunchSpec, process: ProcessIdentity | None
) -> ProcessIdentity | None:
    """Return the process that we wait for, or another agentctl of this execution that holds the lock."""
    if process is not None and identity.is_alive(process):
        return process
    others = (await asyncio.to_thread(execution_processes.find_processes, spec.execution_id)).agentctl
    if not others:
        if refusal := _workspace_error(directory):
            raise refusal
        raise LaunchFailed(f"agentctl ended while it started: {_last_log_line(directory)}")
    return others[0]


def _last_log_line(directory: StateDirectory) -> str:
    """Return the last line of agentctl's log, which names the error, and the path of the log."""
    try:
        with directory.log_file.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 2000))
            lines = log.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return "its log cannot be read."
    written = [line.strip() for line in lines if line.strip()]
    if written:
        return f"{written[-1]} (more in {directory.log_file})"
    return "its log is empty."


def find_listener(directory: StateDirectory, execution_id: str) -> AgentctlListener | None:
    """Return the listener of a running agentctl, proven by its ready file and process; None if none runs."""
    ready = read_ready_file(directory)
    if ready is None:
        return None
    process = identity.identify(ready.pid)
    if process is None or not execution_processes.is_agentctl(ready.pid, execution_id):
        return None
    return AgentctlListener(ready.url, process)


def has_ended_with_its_host(directory: StateDirectory, execution: ExecutionFacts) -> bool:
    """Whether an execution of another ``host_id`` ended with that host: an earlier boot, or a container.

    Proof: its state directory is here, with a token of ours, and nobody holds its lock, without which no agentctl can
    run. A process of our own boot and pid namespace is never judged this way. The data directory must be on a local
    disk, which the journal requires anyway.
    """
    recorded = execution_processes.recorded_process(execution.state)
    own = identity.identify_self()
    if recorded is None or (recorded.boot_id, recorded.pid_namespace) == (own.boot_id, own.pid_namespace):
        return False
    try:
        return launch_tokens.is_token_of(directory.token(), execution.auth_token) and is_lock_free(directory.lock_file)
    except OSError:
        return False


def is_lock_free(lock_file: Path) -> bool:
    """Whether nobody holds the lock of a state directory; raises OSError."""
    descriptor = os.open(lock_file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
