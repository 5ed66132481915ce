"""The launcher and the forked guard: the appearance of forks, and the effect of each process's death."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl import launcher as program
from executors_app.agentctl.process.guard_process import command_line_of
from executors_app.machine import agentctl_process
from executors_app.machine.local_machine import LocalMachine
from executors_app.machine.process import execution_processes, identity
from executors_app.machine.process.identity import ProcessIdentity
from executors_app.machine.storage import ExecutionStorage
from executors_app.runtimes.local_standalone.runtime import RUNTIME
from executors_app.wire.executions import Launched, LaunchSpec
from tests.agentctl.scripts import process_in
from tests.executors.launches import TOKEN, agentctl_of, client_of, kill, only_agentctl
from tests.services import ROOT
from tests.waiting import eventually_async

GUARD, JOB_GUARD = "kandev-guard", "kandev-job-guard"


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[agentctl_process._Launcher]:
    """Yield a new launcher."""
    made = agentctl_process._Launcher()
    monkeypatch.setattr(agentctl_process, "_LAUNCHER", made)
    yield made
    if made._connection is not None:
        made._connection.close()


@pytest.fixture
def other(spec: LaunchSpec) -> Iterator[LaunchSpec]:
    """Yield the spec of another session's launch."""
    wanted = replace(spec, execution_id=spec.execution_id[::-1], session_id=spec.session_id[::-1])
    yield wanted
    found = execution_processes.find_processes(wanted.execution_id)
    identity.kill_all([*found.agentctl, *found.others], 10)


def process_of(launcher: agentctl_process._Launcher) -> ProcessIdentity:
    assert launcher._process is not None
    return launcher._process


def named(spec: LaunchSpec, name: str) -> list[ProcessIdentity]:
    """Return the processes of an execution, except agentctl, with this command line."""
    others = execution_processes.find_processes(spec.execution_id).others
    return [process for process in others if command_line_of(process.pid) == name]


async def test_fork_looks_like_an_executed_process(launcher: agentctl_process._Launcher, spec: LaunchSpec) -> None:
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
    assert only_agentctl(spec.execution_id) == agentctl_of(launched), "the guard is no agentctl"
    assert len(named(spec, GUARD)) == 1


async def test_forks_see_nothing_of_each_other(
    launcher: agentctl_process._Launcher, spec: LaunchSpec, other: LaunchSpec, data_directory: Path
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
    launcher: agentctl_process._Launcher, spec: LaunchSpec, other: LaunchSpec
) -> None:
    launched = await RUNTIME.launch(spec)
    killed = process_of(launcher)
    identity.kill_all([killed], 5)

    assert (await client_of(spec, launched).status())["boot_id"] == launched.boot_id
    assert only_agentctl(spec.execution_id) == agentctl_of(launched)
    await RUNTIME.launch(other)
    assert process_of(launcher) != killed, "another launcher has started"
    assert named(other, GUARD)


async def test_launcher_killed_during_a_start_leaves_one_agentctl(
    launcher: agentctl_process._Launcher, spec: LaunchSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher._start()
    identity.send_signal(process_of(launcher), signal.SIGSTOP)
    sent = threading.Event()
    send = socket.send_fds

    def send_and_tell(*words: Any) -> None:
        send(*words)
        sent.set()

    monkeypatch.setattr(socket, "send_fds", send_and_tell)
    starting = asyncio.create_task(RUNTIME.launch(spec))
    await asyncio.to_thread(sent.wait)
    identity.kill_all([process_of(launcher)], 5)

    launched = await starting

    assert only_agentctl(spec.execution_id) == agentctl_of(launched)
    assert not launched.found
    assert not named(spec, GUARD), "the guard was executed anew"


async def test_start_whose_client_was_killed_is_found_and_not_repeated(spec: LaunchSpec, data_directory: Path) -> None:
    launcher = await asyncio.to_thread(_request_and_die, spec, data_directory)
    assert execution_processes.find_processes(spec.execution_id).agentctl == []
    identity.send_signal(launcher, signal.SIGCONT)

    launched = await RUNTIME.launch(spec)

    assert launched.found
    assert only_agentctl(spec.execution_id) == agentctl_of(launched)
    await eventually_async(lambda: not identity.is_alive(launcher), describe="the launcher ends with its client")


CLIENT = """
import socket, sys; from pathlib import Path
from executors_app.machine import agentctl_process, launch
from executors_app.machine.storage import ExecutionStorage
from executors_app.machine.process import identity
from executors_app.wire.executions import LaunchSpec
data, execution, session, repository, token = sys.argv[1:]
storage, spec = ExecutionStorage(Path(data)), LaunchSpec(execution, session, '', repository, '', token)
worktree = storage.write_seed(spec)
agentctl_process._LAUNCHER._start()
identity.send_signal(agentctl_process._LAUNCHER._process, 19)
send = socket.send_fds
socket.send_fds = lambda *words: (send(*words), print(agentctl_process._LAUNCHER._process.pid, flush=True))
launch._find_or_start(storage.state_directory_of(execution), spec, worktree.path, token, {})
"""


def _request_and_die(spec: LaunchSpec, data_directory: Path) -> ProcessIdentity:
    """Request a start in a separate process and kill it; return its launcher, which is frozen."""
    words = [str(data_directory), spec.execution_id, spec.session_id, spec.repository_path, TOKEN]
    argv = [sys.executable, "-c", CLIENT, *words]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        launcher = identity.identify(int(client.stdout.readline()))
        client.kill()
    assert launcher is not None
    return launcher


async def test_agentctl_is_executed_where_no_launcher_runs(
    launcher: agentctl_process._Launcher, spec: LaunchSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agentctl_process, "_LAUNCHER_MODULE", "no_such_module")

    launched = await RUNTIME.launch(spec)

    assert only_agentctl(spec.execution_id) == agentctl_of(launched)
    assert not named(spec, GUARD)


async def test_command_line_without_room_is_executed_and_the_next_one_forked(
    launcher: agentctl_process._Launcher, spec: LaunchSpec, other: LaunchSpec, data_directory: Path
) -> None:
    launched = await LocalMachine(ExecutionStorage(data_directory), {"LONG": "x" * 9000}).launch(spec)
    await RUNTIME.launch(other)

    assert only_agentctl(spec.execution_id) == agentctl_of(launched)
    assert not named(spec, GUARD)
    assert named(other, GUARD)


async def test_one_guard_serves_one_agent_after_the_other(
    launcher: agentctl_process._Launcher, spec: LaunchSpec
) -> None:
    launched = await RUNTIME.launch(spec)
    (guard,) = named(spec, GUARD)
    for number in range(3):
        agent = await running_agent(spec, launched, f"launch-{number}")
        found = identity.read_stat(agent.pid)
        assert found is not None
        assert found.parent == guard.pid
        assert await client_of(spec, launched).stop_agent(1, f"stop-{number}")
        assert not identity.is_alive(agent)
    assert len(list(Path(f"/proc/{guard.pid}/fd").iterdir())) == 4, "the guard has its socket and nothing of an agent"


@pytest.mark.parametrize("has_agent", [True, False])
async def test_killed_guard_ends_its_agent_and_allows_the_next(
    launcher: agentctl_process._Launcher, spec: LaunchSpec, has_agent: bool
) -> None:
    launched = await RUNTIME.launch(spec)
    agent = await running_agent(spec, launched) if has_agent else None
    identity.kill_all(named(spec, GUARD), 5)

    async def is_over() -> bool:
        return (await client_of(spec, launched).status())["agent"]["state"] in {"none", "exited", "failed"}

    await eventually_async(is_over, describe="agentctl knows that the agent has ended")
    assert agent is None or not identity.is_alive(agent)

    again = await running_agent(spec, launched, "launch-2")

    assert identity.is_alive(again)
    assert not named(spec, GUARD), "the guard was executed anew"


async def test_nothing_is_left_of_a_killed_agentctl(launcher: agentctl_process._Launcher, spec: LaunchSpec) -> None:
    launched = await RUNTIME.launch(spec)
    await running_agent(spec, launched)

    kill(launched)

    def no_process() -> bool:
        return execution_processes.find_processes(spec.execution_id) == execution_processes.ExecutionProcesses()

    await eventually_async(no_process, describe="guard and agent have ended")


async def test_each_job_has_its_own_forked_guard(launcher: agentctl_process._Launcher, spec: LaunchSpec) -> None:
    launched = await RUNTIME.launch(spec)
    jobs = [await running_job(spec, launched, f"job-{number}") for number in range(2)]

    (guard,) = named(spec, GUARD)
    for script, job_guard in jobs:
        found, leader = identity.read_stat(job_guard.pid), identity.read_stat(script.pid)
        assert found is not None
        assert leader is not None
        assert (found.parent, found.session, leader.session) == (agentctl_of(launched).pid, job_guard.pid, script.pid)
        assert not execution_processes.is_agentctl(job_guard.pid, spec.execution_id)
        assert f"KANDEV_EXECUTION_ID={spec.execution_id}".encode() in identity.read_environment(job_guard.pid)
    assert set(named(spec, JOB_GUARD)) == {job_guard for _, job_guard in jobs}
    assert await running_agent(spec, launched), "the guard accepts another agent"

    identity.kill_all([guard], 5)

    for number, (script, job_guard) in enumerate(jobs):
        assert identity.is_alive(script)
        ended = await client_of(spec, launched).cancel_job(f"job-{number}")
        assert (ended["error"], ended["stdout"]) == ("cancelled", "said\n")
        assert not identity.is_alive(script)
        assert not identity.is_alive(job_guard)
    ended = await client_of(spec, launched).start_job("job-3", {"script": "echo $PPID"})
    assert ended["error"] == "", "the guard was executed anew"


async def test_job_beside_an_agent_has_an_executed_guard_and_the_next_a_forked_one(
    launcher: agentctl_process._Launcher, spec: LaunchSpec
) -> None:
    launched = await RUNTIME.launch(spec)
    await running_agent(spec, launched)
    await running_job(spec, launched, "job-1")
    assert not named(spec, JOB_GUARD)

    assert await client_of(spec, launched).stop_agent(1, "stop-1")
    _, job_guard = await running_job(spec, launched, "job-2")

    assert named(spec, JOB_GUARD) == [job_guard]
    found = identity.read_stat(job_guard.pid)
    assert found is not None
    assert found.parent == agentctl_of(launched).pid, "the guard of agents would end it with an agent"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_job_whose_guard_cannot_be_forked_runs_once(
    launcher: agentctl_process._Launcher, spec: LaunchSpec, number: signal.Signals
) -> None:
    launched = await RUNTIME.launch(spec)
    (guard,) = named(spec, GUARD)
    identity.send_signal(guard, number)

    client = client_of(spec, launched)
    await client.start_job("job-1", {"script": "echo ran >>times"})
    ended = await client.job("job-1", wait=20)

    assert (ended["state"], ended["exit_code"]) == ("ended", 0)
    assert Path(launched.workspace_path, "times").read_text() == "ran\n"
    assert not named(spec, GUARD)


async def test_forked_guard_of_a_job_that_is_killed_leaves_nothing(
    launcher: agentctl_process._Launcher, spec: LaunchSpec
) -> None:
    launched = await RUNTIME.launch(spec)
    unmarked = "setsid env -i sh -c 'echo $$ >left; exec sleep 3600' &"
    script, job_guard = await running_job(spec, launched, "job-1", unmarked)
    left = await process_in(Path(launched.workspace_path) / "left")

    identity.kill_all([job_guard], 5)

    ended = await client_of(spec, launched).job("job-1", wait=20)
    assert (ended["state"], ended["stdout"]) == ("lost", "said\n")
    assert not identity.is_alive(script)
    assert not identity.is_alive(left)


async def running_job(
    spec: LaunchSpec, launched: Launched, job_id: str, also: str = ""
) -> tuple[ProcessIdentity, ProcessIdentity]:
    """Start a script that runs for an hour; return its process and its guard's."""
    script = f"{also}\necho said; echo $PPID >{job_id}.guard; echo $$ >{job_id}.pid; exec sleep 3600"
    await client_of(spec, launched).start_job(job_id, {"script": script})
    place = Path(launched.workspace_path)
    return await process_in(place / f"{job_id}.pid"), await process_in(place / f"{job_id}.guard")


async def running_agent(spec: LaunchSpec, launched: Launched, launch_id: str = "launch-1") -> ProcessIdentity:
    """Start the demo agent; return its process."""
    agent = str(ROOT / "executors_app" / "demo_agent")
    order = {
        "launch_id": launch_id,
        "argv": [sys.executable, "-I", agent],
        "env": {"KANDEV_DEMO_AGENT_HOME": str(Path(launched.workspace_path).parent / "agent")},
        "cwd": launched.workspace_path,
        "driver": "acp",
        "strategy": "fresh",
        "mcp_servers": [],
        "permission_mode": "ask",
    }
    await client_of(spec, launched).start_agent(order, 30)
    (found,) = named(spec, " ".join([sys.executable, "-I", agent]))
    return found


REHEARSED = """
import os, signal, threading
from executors_app.agentctl.launcher import rehearse
def state():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
    return os.listdir("/proc/self/fd"), os.listdir("/proc/self/task"), handlers, os.listdir(os.environ["TMPDIR"])
before = state()
rehearse()
assert state() == before, (before, state())
assert threading.active_count() == 1
assert signal.set_wakeup_fd(-1) == -1
"""


def test_rehearsal_leaves_no_thread_file_or_signal_handler(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", REHEARSED], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_launcher_that_can_serve_nothing_still_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    program._prepare()
    assert "because the rehearsal failed" in caplog.text
