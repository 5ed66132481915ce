"""Starts the agentctl of an execution on this machine, or finds the one that a dead starter has left."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import orjson

from executors_app.agentctl import child_environment, identity, unix_socket
from executors_app.agentctl.identity import ProcessIdentity
from executors_app.agentctl.places import launch_token, local_processes, workspace_root
from executors_app.agentctl.places.bulk_status import StatusTarget, ask_status
from executors_app.agentctl.places.detached import start_detached
from executors_app.agentctl.places.listeners import Listener
from executors_app.agentctl.places.state_directory import StateDirectory
from executors_app.agentctl.protocol import MARKER
from executors_app.domain import ExecutionFacts, LaunchSpec
from executors_app.errors import AgentctlUnreachable, ExecutorError, LaunchFailed

READY_WITHIN: Final = 60.0
MADE_WITHIN: Final = 600.0
"""Seconds in which agentctl makes the worktree, before it listens."""
_POLL: Final = 0.01
_LOOK_EVERY: Final = 0.5
_SOURCE_ROOT: Final = Path(__file__).resolve().parents[3]
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Ready:
    """What agentctl's ready file says."""

    url: str
    pid: int


@dataclass(frozen=True, slots=True)
class LocalAgentctl:
    """A live agentctl that answered us as ours."""

    url: str
    process: ProcessIdentity
    boot_id: str
    token: str = field(repr=False)
    found: bool


def read_ready(places: StateDirectory) -> Ready | None:
    """The ready file, if it is there and whole."""
    try:
        read = orjson.loads(places.ready_file.read_bytes())
        return Ready(str(read["url"]), int(read["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _refusal(places: StateDirectory) -> ExecutorError | None:
    """The error of a worktree that cannot be made, which agentctl writes in the place of its address."""
    try:
        answer = orjson.loads(places.ready_file.read_bytes())
        return workspace_root.error_of(answer) if "error" in answer else None
    except (OSError, ValueError, TypeError):
        return None


async def find_or_start(
    places: StateDirectory, spec: LaunchSpec, workspace: Path, token: str, extra: Mapping[str, str] = _NOTHING
) -> LocalAgentctl:
    """The one agentctl of the execution, once it has answered.

    A new one gets ``token``, and ``extra`` in its environment. Raises LaunchFailed, WorkspaceGone,
    RepositoryUnusable, OSError.
    """
    places.make()
    process, found = await asyncio.to_thread(_find_or_start, places, spec, workspace, token, extra)
    return await _wait_until_ready(places, spec, process, found=found)


def _find_or_start(
    places: StateDirectory, spec: LaunchSpec, workspace: Path, token: str, extra: Mapping[str, str]
) -> tuple[ProcessIdentity | None, bool]:
    """The live process, or a new one with this token, and whether it was found.

    The token is in its file before the process is started: whoever comes after our death finds both, or neither.
    Of two that start at once the second must not write its token over the one that the first one's process has.
    """
    with places.one_start():
        alive = local_processes.look_at(spec.execution_id).agentctl
        if alive:
            return alive[0], True
        places.write_token(token)
        places.ready_file.unlink(missing_ok=True)
        return _start(places, spec, workspace, extra), False


def _start(
    places: StateDirectory, spec: LaunchSpec, workspace: Path, extra: Mapping[str, str] = _NOTHING
) -> ProcessIdentity | None:
    argv = [
        *(sys.executable, "-P", "-m", local_processes.AGENTCTL_MODULE, "serve"),
        *("--workspace", str(workspace)),
        *("--state-dir", str(places.path)),
        *("--session-id", spec.session_id),
        *(("--worktree-of", spec.worktree_id) if spec.worktree_id else ()),
        *("--execution-id", spec.execution_id),
        *("--token-file", str(places.token_file)),
        *("--seed", str(places.seed_file)),
        *("--ready-file", str(places.ready_file)),
        *("--listen", unix_socket.url_of(places.socket)),
    ]
    marker = {MARKER: spec.execution_id, child_environment.SESSION: spec.session_id}
    environment = child_environment.build({"PYTHONPATH": str(_SOURCE_ROOT), **extra}, marker)
    try:
        return identity.of(start_detached(argv, environment=environment, log_file=places.log_file))
    except (subprocess.SubprocessError, ValueError) as error:
        raise LaunchFailed(f"agentctl could not be started: {error}") from error


async def _wait_until_ready(
    places: StateDirectory, spec: LaunchSpec, process: ProcessIdentity | None, *, found: bool
) -> LocalAgentctl:
    """Poll the ready file until the agentctl that it names has answered as ours."""
    deadline = time.monotonic() + MADE_WITHIN + READY_WITHIN
    next_look = time.monotonic() + _LOOK_EVERY
    problem = "it did not tell its address"
    while time.monotonic() < deadline:
        ready = read_ready(places)
        if ready is not None and local_processes.is_agentctl(ready.pid, spec.execution_id):
            try:
                return await _ask(places, ready, spec, found=found)
            except AgentctlUnreachable as error:
                problem = error.message
            except ExecutorError as error:
                raise LaunchFailed(f"The agentctl of this session does not accept us: {error.message}") from error
        if time.monotonic() > next_look:
            process = await _still_there(places, spec, process)
            next_look = time.monotonic() + _LOOK_EVERY
        await asyncio.sleep(_POLL)
    raise LaunchFailed(f"agentctl was not ready within {READY_WITHIN:g} s: {problem}.")


async def _ask(places: StateDirectory, ready: Ready, spec: LaunchSpec, *, found: bool) -> LocalAgentctl:
    process, token = identity.of(ready.pid), places.token()
    target = StatusTarget(spec.execution_id, ready.url, token, listener=Listener(ready.url, process))
    status = await ask_status(target, 5.0)
    if process is None or not identity.is_alive(process):
        raise AgentctlUnreachable("agentctl ended just after it had answered")
    return LocalAgentctl(ready.url, process, str(status.get("boot_id", "")), token, found)


async def _still_there(
    places: StateDirectory, spec: LaunchSpec, process: ProcessIdentity | None
) -> ProcessIdentity | None:
    """The process that we wait for, or another agentctl of this execution that it gave way to."""
    if process is not None and identity.is_alive(process):
        return process
    others = (await asyncio.to_thread(local_processes.look_at, spec.execution_id)).agentctl
    if not others:
        if refusal := _refusal(places):
            raise refusal
        raise LaunchFailed(f"agentctl ended at its start: {_last_words(places)}")
    return others[0]


def _last_words(places: StateDirectory) -> str:
    """The last line of agentctl's log, which names the error, and where the rest is."""
    try:
        with places.log_file.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 2000))
            lines = log.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return "it left no log."
    said = [line.strip() for line in lines if line.strip()]
    return f"{said[-1]} (more in {places.log_file})" if said else "it said nothing."


def listener_in(places: StateDirectory, execution_id: str) -> Listener | None:
    """The agentctl of an execution as its ready file and its process prove it; None where none lives."""
    ready = read_ready(places)
    process = identity.of(ready.pid) if ready else None
    if ready is None or process is None or not local_processes.is_agentctl(ready.pid, execution_id):
        return None
    return Listener(ready.url, process)


def has_ended_with_its_host(places: StateDirectory, execution: ExecutionFacts) -> bool:
    """Whether an execution of another ``host_id`` ended with it: with a boot of this machine, or a container.

    The proof is its state directory here, with a token of ours in it and a lock that nobody holds: an
    agentctl cannot run without holding it. A process that could still be seen from here is none
    of these. The data directory must be on a disk of this machine, as for the journal's sake anyway.
    """
    who = local_processes.recorded(execution.state)
    mine = identity.of_self()
    if who is None or (who.boot_id, who.pid_namespace) == (mine.boot_id, mine.pid_namespace):
        return False
    try:
        return launch_token.is_of(places.token(), execution.auth_token) and is_free(places.lock_file)
    except OSError:
        return False


def is_free(lock_file: Path) -> bool:
    """Whether no agentctl holds the lock of its state directory; raises OSError."""
    descriptor = os.open(lock_file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
