"""Whichever process is killed, no process of an agent is left, and no foreign process is signalled."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from executors_app.agentctl.process import guard_client, guard_process
from executors_app.agentctl.process import subreaper as adoption
from executors_app.agentctl.process.agent_process import AgentProcess, SpawnFailed
from executors_app.agentctl.process.guard_process import PR_SET_CHILD_SUBREAPER, children_of
from executors_app.machine.process import execution_processes, identity
from executors_app.machine.process.identity import ProcessIdentity
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.agents.conftest import ROOT
from tests.waiting import eventually, eventually_async


@dataclass(frozen=True)
class Family:
    """A stand-in for agentctl, its guard, the agent, and every process that the agent has started."""

    home: Path
    parent: ProcessIdentity
    guard: ProcessIdentity
    agent: ProcessIdentity
    forked: list[ProcessIdentity]

    @property
    def tree(self) -> list[ProcessIdentity]:
        return [self.guard, self.agent, *self.forked]

    def exit_code(self) -> int | None:
        ended: dict[str, int | None] = json.loads(eventually(lambda: _text(self.home / "ended.json")))
        return ended["exit_code"]

    def living(self) -> list[ProcessIdentity]:
        return [each for each in self.tree if identity.is_alive(each)]


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Callable[[str], Family]]:
    parents: list[subprocess.Popen[bytes]] = []
    families: list[Family] = []

    def begin(behaviour: str) -> Family:
        home = tmp_path / f"home-of-{behaviour}"
        home.mkdir()
        command = [sys.executable, str(Path(__file__).with_name("parent.py")), str(home), behaviour]
        parent = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})
        parents.append(parent)
        pids = json.loads(eventually(lambda: _text(home / "parent.json")))
        forked = [int(pid) for pid in eventually(lambda: _text(home / "forked.pids")).split()]
        who = {name: _identity(pid) for name, pid in pids.items()}
        families.append(Family(home, who["parent"], who["guard"], who["agent"], [_identity(pid) for pid in forked]))
        return families[-1]

    yield begin
    for parent in parents:
        parent.kill()
        parent.communicate()
    for each in families:
        identity.kill_all(each.tree, 5)
        identity.remove_group(each.home.name)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _identity(pid: int) -> ProcessIdentity:
    found = identity.identify(pid)
    assert found is not None
    return found


@pytest.mark.parametrize("behaviour", ["forks", "relaunches_itself"])
@pytest.mark.parametrize("victim", ["agent", "guard", "parent"])
def test_no_process_is_left_whichever_one_is_killed(
    victim: str, behaviour: str, family: Callable[[str], Family]
) -> None:
    those = family(behaviour)
    assert len(those.living()) == len(those.tree)

    assert identity.send_signal(getattr(those, victim), signal.SIGKILL)

    eventually(lambda: not those.living(), describe="all processes of the agent have ended")
    if victim != "parent":
        assert identity.is_alive(those.parent)
        assert those.exit_code() == (-signal.SIGKILL if victim == "agent" else None)


def test_process_that_outlives_guard_and_parent_is_found_by_marker(family: Callable[[str], Family]) -> None:
    those = family("forks")
    child, leader, cleared = those.forked
    grouped = identity.execution_of_process(cleared.pid) == those.home.name
    identity.send_signal(those.parent, signal.SIGSTOP)
    identity.send_signal(those.guard, signal.SIGKILL)
    identity.send_signal(those.parent, signal.SIGKILL)
    eventually(lambda: not identity.is_alive(those.parent) and not identity.is_alive(those.agent))
    assert identity.is_alive(leader), "the leader still runs, as the test requires"

    left = asyncio.run(adoption.end_marked_processes(those.home.name))

    assert left == []
    assert not identity.is_alive(child)
    assert not identity.is_alive(leader)
    assert identity.is_alive(cleared) is not grouped, "without mark and group it is not found, as documented"


def test_control_group_finds_a_process_with_a_cleared_environment(
    family: Callable[[str], Family],
) -> None:
    those = family("forks")
    cleared = those.forked[-1]
    grouped = identity.execution_of_process(cleared.pid) == those.home.name
    identity.send_signal(those.parent, signal.SIGSTOP)
    identity.send_signal(those.guard, signal.SIGKILL)
    identity.send_signal(those.parent, signal.SIGKILL)
    eventually(lambda: not identity.is_alive(those.parent))

    assert execution_processes.find_processes(those.home.name).others
    assert execution_processes.kill_leftovers(those.home.name)

    assert those.living() == ([] if grouped else [cleared])


def _spawn(script: str, cwd: Path, lines: list[str], *, keep: bool = False) -> asyncio.Future[AgentProcess]:
    def record(_: str, **body: str) -> None:
        lines.append(body["text"])

    argv = ["/bin/sh", "-c", script]
    return asyncio.ensure_future(
        AgentProcess.spawn(argv, {"WHO": "me"}, str(cwd), {"KANDEV_EXECUTION_ID": "x"}, record, keep_descendants=keep)
    )


async def _read_to_end(agent: AgentProcess) -> bytes:
    output = b""
    while data := await agent.stdout.read():
        output += data
    return output


async def test_agent_gets_arguments_environment_and_directory_and_returns_exit_code(tmp_path: Path) -> None:
    lines: list[str] = []
    agent = await _spawn(
        'pwd; echo "$WHO $KANDEV_EXECUTION_ID"; read x; echo "got $x"; echo oh >&2; exit 7', tmp_path, lines
    )
    await agent.stdin.write(b"it\n")

    assert (await _read_to_end(agent)).decode() == f"{tmp_path}\nme x\ngot it\n"
    assert await agent.wait() == 7
    await agent.close()
    assert lines == ["oh"]
    assert agent.output_tail() == "oh"


async def test_agent_inherits_only_three_pipes_and_no_ignored_signals(tmp_path: Path) -> None:
    agent = await _spawn("ls -x /proc/self/fd; grep -E 'SigBlk|SigIgn' /proc/self/status", tmp_path, [])

    descriptors, blocked, ignored = (await _read_to_end(agent)).decode().splitlines()
    await agent.wait()
    await agent.close()

    assert descriptors.split() == ["0", "1", "2", "3"], "3 is the directory that ls reads"
    assert (_usable_signals(blocked), _usable_signals(ignored)) == (0, 0)


def _usable_signals(mask: str) -> int:
    """Return the signals of a line in ``/proc/self/status``, except 32 and 33, which the C library reserves."""
    return int(mask.split()[1], 16) & ~(0b11 << 31)


async def test_stop_sends_sigterm_first_and_allows_a_clean_up(tmp_path: Path) -> None:
    agent = await _spawn("trap 'echo tidy; exit 5' TERM; echo ready; while :; do sleep 0.05; done", tmp_path, [])
    await agent.stdout.read()

    assert await agent.stop(10) == 5
    assert await _read_to_end(agent) == b"tidy\n"
    await agent.close()


async def test_what_the_agent_ends_itself_at_the_end_of_its_input_is_recorded_as_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption._KilledProcessesFile, "path", None)
    adoption.set_killed_processes_directory(tmp_path)
    agent = await _spawn("sleep 3601 & echo ready; read x; kill $!; wait; exit 3", tmp_path, [])
    await agent.stdout.read()

    await agent.end_input(60)

    assert await agent.stop(0) == 3
    await agent.close()
    assert adoption.read_killed_processes() == ["sleep 3601"]


async def test_second_shorter_stop_overtakes_a_longer_one(tmp_path: Path) -> None:
    agent = await _spawn("trap '' TERM; echo ready; while :; do sleep 0.05; done", tmp_path, [])
    await agent.stdout.read()
    patient = asyncio.create_task(agent.stop(60))

    assert await agent.stop(0) == -signal.SIGKILL
    assert await patient == -signal.SIGKILL
    await agent.close()


async def test_children_that_outlive_a_finished_agent_are_ended(tmp_path: Path) -> None:
    agent = await _spawn("setsid sleep 3600 & echo $!; exec 1>&-; exit 0", tmp_path, [])
    child = int(await agent.stdout.read())

    assert await agent.wait() == 0
    await agent.close()

    assert identity.identify(child) is None


async def test_kept_descendants_run_on_and_may_write(tmp_path: Path) -> None:
    writes = "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2; touch written; exec sleep 3600"
    agent = await _spawn(f"(setsid sh -c '{writes}' & echo $! >pid) & wait; exit 7", tmp_path, [], keep=True)
    assert await agent.finish() == 7
    child = _identity(int((tmp_path / "pid").read_text()))

    await eventually_async((tmp_path / "written").exists)

    assert agent.has_exited
    assert agent.is_running
    assert identity.is_alive(child)
    await agent.stop(0)
    assert not identity.is_alive(child)
    assert not agent.is_running


async def test_kept_descendants_may_clean_up_when_stopped(tmp_path: Path) -> None:
    waits = "trap 'touch cleaned; exit' TERM; touch ready; while :; do sleep 0.05; done"
    agent = await _spawn(f'(setsid sh -c "{waits}" &) & wait', tmp_path, [], keep=True)
    await agent.finish()
    await eventually_async((tmp_path / "ready").exists)

    assert await agent.stop(60) == 0

    assert (tmp_path / "cleaned").exists()


@pytest.fixture
def subreaper() -> Iterator[None]:
    """Adopt orphans in this process, for this test only: other tests would find zombies."""
    adoption.become_subreaper()
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.mark.usefixtures("subreaper")
def test_reaper_collects_orphans_but_no_awaited_children() -> None:
    ours = subprocess.Popen(["/bin/true"])
    script = "sh -c 'echo $$; exec >&-; read x' &"
    pipe = subprocess.PIPE
    starter = subprocess.Popen(["/bin/sh", "-c", script], stdin=pipe, stdout=pipe, start_new_session=True)
    assert starter.stdout
    assert starter.stdin
    orphan = int(starter.stdout.readline())
    starter.wait()
    starter.communicate()
    eventually(lambda: (seen := identity.read_stat(orphan)) and seen.ended)
    eventually(lambda: (seen := identity.read_stat(ours.pid)) and seen.ended)

    adoption.Reaper().reap()

    assert identity.read_stat(orphan) is None
    assert ours.wait() == 0, "the exit status is left to the parent"


def test_guard_imports_no_slow_modules() -> None:
    """Every start of an agent waits for these imports."""
    source = Path(guard_process.__file__)
    program = f"import sys; exec(open({str(source)!r}).read(), {{'__name__': 'guard'}}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    assert not {"contextlib", "enum", "pathlib", "typing"} & set(done.stdout.split())


@pytest.fixture
async def ready() -> AsyncIterator[Callable[[], ProcessIdentity]]:
    """Keep one spare guard; yield a function that returns its process."""
    execution = uuid.uuid4().hex
    guard_client.keep_spare_guard({EXECUTION_MARKER: execution})

    def waiting() -> ProcessIdentity:
        marked = eventually(lambda: identity.find_marked(execution), describe="the guard runs")
        (found,) = [each for each in marked if not children_of(each.pid)]
        return found

    yield waiting
    await guard_client.drop_spare_guard()
    assert identity.find_marked(execution) == []


async def test_next_agent_uses_the_spare_guard_and_another_replaces_it(
    ready: Callable[[], ProcessIdentity], tmp_path: Path
) -> None:
    first = ready()

    agent = await _spawn("read x; exit 3", tmp_path, [])
    found = identity.read_stat(agent.pid)
    assert found is not None
    assert found.parent == first.pid
    await agent.stdin.write(b"\n")

    assert await agent.wait() == 3
    await agent.close()
    assert ready() != first


async def test_dead_spare_guard_does_not_fail_a_start(ready: Callable[[], ProcessIdentity], tmp_path: Path) -> None:
    dead = ready()
    identity.kill_all([dead], 5)

    agent = await _spawn("pwd", tmp_path, [])

    assert (await _read_to_end(agent)).decode() == f"{tmp_path}\n"
    assert await agent.wait() == 0
    await agent.close()


async def test_failed_start_names_the_cause_and_leaves_a_spare_guard(
    ready: Callable[[], ProcessIdentity], tmp_path: Path
) -> None:
    with pytest.raises(SpawnFailed, match=r"the program .*no-such-program was not found") as error:
        await AgentProcess.spawn([str(tmp_path / "no-such-program")], {}, str(tmp_path), {}, lambda *_, **__: None)

    assert error.value.permanent
    assert ready(), "the other guard runs"


def test_spare_guard_ends_with_its_agentctl(tmp_path: Path) -> None:
    execution = uuid.uuid4().hex
    program = (
        "import asyncio, sys\n"
        "from executors_app.agentctl.process import guard_client\n"
        "from executors_app.wire.protocol import EXECUTION_MARKER\n"
        "async def main():\n"
        "    guard_client.keep_spare_guard({EXECUTION_MARKER: sys.argv[1]})\n"
        "    print(flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    argv = [sys.executable, "-c", program, execution]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}) as parent:
        assert parent.stdout
        parent.stdout.readline()
        eventually(lambda: identity.find_marked(execution), describe="the guard runs")
        parent.kill()

    eventually(lambda: not identity.find_marked(execution), describe="the guard has ended")
