"""The launcher and the guard server: what their forks look like, and what the death of either changes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.local_runtime import detached
from executors_app.agentctl.local_runtime.machine import LocalMachine
from executors_app.agentctl.local_runtime.storage import ExecutionStorage
from executors_app.agentctl.process import execution_processes, identity
from executors_app.agentctl.process.guard_process import command_line_of
from executors_app.agentctl.process.identity import ProcessIdentity
from executors_app.domain import Launched, LaunchSpec
from executors_app.runtimes.local_standalone import RUNTIME
from tests.executors.launches import TOKEN, agentctl_of, client_of, kill
from tests.services import ROOT
from tests.waiting import eventually

AGENT = "read line; exec sleep 3600"


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> detached._Launcher:
    """A launcher of this test."""
    made = detached._Launcher()
    monkeypatch.setattr(detached, "_LAUNCHER", made)
    return made


@pytest.fixture
def other(spec: LaunchSpec) -> Iterator[LaunchSpec]:
    """A launch of another session."""
    wanted = replace(spec, execution_id=spec.execution_id[::-1], session_id=spec.session_id[::-1])
    yield wanted
    found = execution_processes.find_processes(wanted.execution_id)
    identity.kill_all([*found.agentctl, *found.others], 10)


def process_of(launcher: detached._Launcher) -> ProcessIdentity:
    assert launcher._process is not None
    return launcher._process


def agentctls(spec: LaunchSpec) -> list[ProcessIdentity]:
    return execution_processes.find_processes(spec.execution_id).agentctl


def named(spec: LaunchSpec, name: str) -> list[ProcessIdentity]:
    """The processes of an execution beside its agentctl, by command line."""
    others = execution_processes.find_processes(spec.execution_id).others
    return [process for process in others if command_line_of(process.pid) == name]


async def start_agent(spec: LaunchSpec, launched: Launched, script: str = "exit 3") -> None:
    """Start an agent that says nothing: the start fails once it has ended."""
    start = {"launch_id": "launch-1", "argv": ["sh", "-c", script], "env": {}, "cwd": launched.workspace_path}
    rest: dict[str, Any] = {"driver": "acp", "strategy": "fresh", "mcp_servers": [], "permission_mode": "ask"}
    with pytest.raises(Exception):  # noqa: B017, PT011
        await client_of(spec, launched).start_agent({**start, **rest}, 30)


async def test_a_fork_looks_as_if_it_had_been_executed(launcher: detached._Launcher, spec: LaunchSpec) -> None:
    launched = await RUNTIME.launch(spec)

    pid = agentctl_of(launched).pid
    words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    assert words[:5] == [sys.executable, "-P", "-m", "executors_app.agentctl", "serve"]
    assert words[words.index("--execution-id") + 1] == spec.execution_id
    assert f"KANDEV_EXECUTION_ID={spec.execution_id}".encode() in identity.read_environment(pid)
    found = identity.read_stat(pid)
    assert found is not None
    assert found.session == pid
    assert found.parent != process_of(launcher).pid
    assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
    assert "Umask:\t0077" in Path(f"/proc/{pid}/status").read_text()
    assert agentctls(spec) == [agentctl_of(launched)], "the guard server is none"
    assert len(named(spec, "kandev-guard-server")) == 1


async def test_forks_see_nothing_of_each_other(
    launcher: detached._Launcher, spec: LaunchSpec, other: LaunchSpec, data_directory: Path
) -> None:
    first = await LocalMachine(ExecutionStorage(data_directory), {"ONLY_OF_THE_FIRST": "x" * 99}).launch(spec)
    second = await LocalMachine(ExecutionStorage(data_directory)).launch(other)

    pid = agentctl_of(second).pid
    shown = Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
    assert b"ONLY_OF_THE_FIRST" in Path(f"/proc/{agentctl_of(first).pid}/environ").read_bytes()
    assert b"ONLY_OF_THE_FIRST" not in shown
    assert spec.execution_id.encode() not in shown
    files = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]  # noqa: PTH115
    assert not [file for file in files if spec.execution_id in file]
    assert not [file for file in files if file.endswith("launch.lock")]


async def test_killed_launcher_takes_no_session_with_it(
    launcher: detached._Launcher, spec: LaunchSpec, other: LaunchSpec
) -> None:
    launched = await RUNTIME.launch(spec)
    killed = process_of(launcher)
    identity.kill_all([killed], 5)

    assert (await client_of(spec, launched).status())["boot_id"] == launched.boot_id
    assert agentctls(spec) == [agentctl_of(launched)]
    await RUNTIME.launch(other)
    assert process_of(launcher) != killed, "another one has started"
    assert named(other, "kandev-guard-server")


async def test_launcher_killed_during_a_start_leaves_one_agentctl(
    launcher: detached._Launcher, spec: LaunchSpec, other: LaunchSpec
) -> None:
    await RUNTIME.launch(other)
    identity.send_signal(process_of(launcher), signal.SIGSTOP)
    starting = asyncio.create_task(RUNTIME.launch(spec))
    await asyncio.to_thread(eventually, lambda: _is_waiting(launcher), describe="the request is with the launcher")
    identity.kill_all([process_of(launcher)], 5)

    launched = await starting

    assert agentctls(spec) == [agentctl_of(launched)]
    assert not launched.found


def _is_waiting(launcher: detached._Launcher) -> bool:
    """Whether a request is in the launcher's socket."""
    assert launcher._connection is not None
    import fcntl
    import struct
    import termios

    return struct.unpack("i", fcntl.ioctl(launcher._connection.fileno(), termios.TIOCOUTQ, bytes(4)))[0] > 0


async def test_start_whose_client_was_killed_is_found_and_not_repeated(spec: LaunchSpec, data_directory: Path) -> None:
    client = (
        "import os, sys, threading, time; from pathlib import Path\n"
        "from executors_app.agentctl.local_runtime import detached, launch\n"
        "from executors_app.agentctl.local_runtime.storage import state_directory\n"
        "from executors_app.agentctl.process import identity\n"
        "from executors_app.domain import LaunchSpec\n"
        "data, execution, session, workspace, token = sys.argv[1:]\n"
        "places = state_directory(Path(data), execution); places.create()\n"
        "detached._LAUNCHER._start()\n"
        "identity.send_signal(detached._LAUNCHER._process, 19)\n"
        "print(detached._LAUNCHER._process.pid, flush=True)\n"
        "spec = LaunchSpec(execution, session, '', '', '', token)\n"
        "launch._find_or_start(places, spec, Path(workspace), token, {})\n"
    )
    workspace = data_directory / "worktrees" / spec.session_id
    words = [str(data_directory), spec.execution_id, spec.session_id, str(workspace), TOKEN]
    argv = [sys.executable, "-c", client, *words]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as starting:
        assert starting.stdout is not None
        launcher = identity.identify(int(starting.stdout.readline()))
        assert launcher is not None
        eventually(lambda: _is_held_up(starting.pid), describe="it waits for its launcher")
        starting.kill()
    assert agentctls(spec) == []
    identity.send_signal(launcher, signal.SIGCONT)

    launched = await RUNTIME.launch(spec)

    assert launched.found
    assert agentctls(spec) == [agentctl_of(launched)]
    eventually(lambda: not identity.is_alive(launcher), describe="the launcher ends with its client")


def _is_held_up(pid: int) -> bool:
    """Whether a process waits in poll or select, which only the wait for a launcher's answer does there."""
    syscall = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    locked = any(os.readlink(entry.path).endswith("launch.lock") for entry in os.scandir(f"/proc/{pid}/fd"))  # noqa: PTH115
    return locked and syscall in {"7", "23", "270", "271"}
