"""Processes that a turn has begun are told from the agent's own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from executors_app.agentctl.process import background as background_module
from executors_app.agentctl.process import process_tree
from executors_app.agentctl.process.background import (
    MAX_LISTED,
    BackgroundProcess,
    BackgroundProcesses,
    BackgroundReports,
    BackgroundWork,
    orphan_commands,
)
from executors_app.agentctl.process.process_roles import ProcessFacts
from tests.waiting import eventually, eventually_async

AGENT = """
import subprocess, sys
helper = subprocess.Popen(["sleep", "300"])
print("up", flush=True)
sys.stdin.readline()
child = subprocess.Popen(["bash", "-c", "sleep 301 & sleep 302"])
print("begun", flush=True)
sys.stdin.readline()
"""
GUARD = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


@contextlib.contextmanager
def started_guard(agent: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", GUARD, agent],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as started:
        try:
            yield started
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)  # a group of its own, because it leads a session


@pytest.fixture
def guard() -> Iterator[subprocess.Popen[str]]:
    with started_guard(AGENT) as started:
        yield started


def begin(guard: subprocess.Popen[str], seconds: str) -> None:
    assert guard.stdin is not None
    assert guard.stdout is not None
    guard.stdin.write(f"{seconds}\n")
    guard.stdin.flush()
    assert guard.stdout.readline() == "begun\n"


def agent_pid(guard: subprocess.Popen[str]) -> int:
    def children() -> list[str]:
        return subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(guard.pid)], check=False, capture_output=True, text=True
        ).stdout.split()

    return int(eventually(children)[0])


def commands_below(pid: int) -> list[str]:
    return [process.command for process in process_tree.descendants_of([pid]).processes]


def test_processes_of_turns_are_told_from_the_agents_own(guard: subprocess.Popen[str]) -> None:
    assert guard.stdin is not None
    assert guard.stdout is not None
    assert guard.stdout.readline() == "up\n"
    pid, background = agent_pid(guard), BackgroundProcesses()
    background.note_work_began(pid)
    assert background.running(pid) == BackgroundWork()

    guard.stdin.write("\n")
    guard.stdin.flush()
    assert guard.stdout.readline() == "begun\n"

    def commands() -> set[str]:
        return {process.command for process in background.running(pid).processes}

    eventually(lambda: {"sleep 301", "sleep 302"} <= commands())
    assert "sleep 300" not in commands()
    for process in background.running(pid).processes:
        age = datetime.now(UTC) - datetime.fromisoformat(process.since)
        assert timedelta(seconds=-2) < age < timedelta(minutes=10), "a time of the wall clock"


@pytest.mark.parametrize("pid", [None, 2**22 + 1])
def test_no_agent_has_no_background_processes(pid: int | None) -> None:
    assert BackgroundProcesses().running(pid) == BackgroundWork()


def test_start_of_a_process_follows_a_clock_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    background, facts = BackgroundProcesses(), ProcessFacts(4711, 1, 100, "make")
    before = datetime.fromisoformat(background._describe(facts).since)
    boot_time = background_module._boot_time
    monkeypatch.setattr(background_module, "_boot_time", lambda: boot_time() + 3600)
    after = datetime.fromisoformat(background._describe(facts).since)
    assert abs(after - before - timedelta(hours=1)) <= timedelta(seconds=1)


def process(name: str, cpu_seconds: float = 0.0) -> BackgroundProcess:
    return BackgroundProcess(name, "2026-01-31T12:00:00+00:00", cpu_seconds)


def work(*names: str) -> BackgroundWork:
    return BackgroundWork([process(name) for name in names])


class Watched:
    """Reports of processes that the test changes, on a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.running: BackgroundWork | None = BackgroundWork()
        self.lines: list[dict[str, Any]] = []
        self.now = 1000.0
        self.checks = 0
        monkeypatch.setattr(background_module, "_SETTLE_SECONDS", 0.0)
        monkeypatch.setattr(background_module, "_CHECK_INTERVAL", 0.01)
        monkeypatch.setattr(background_module, "monotonic", lambda: self.now)
        self.reports = BackgroundReports(self._read, self._record)

    def _read(self) -> BackgroundWork | None:
        self.checks += 1
        return self.running

    def _record(self, kind: str, **body: Any) -> None:
        assert kind == "agent.processes"
        self.lines.append(body)

    async def check_again(self) -> None:
        seen = self.checks
        await eventually_async(lambda: self.checks >= seen + 2)

    @property
    def reported(self) -> list[list[str]]:
        return [[listed["command"] for listed in line["processes"]] for line in self.lines]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    watched = Watched(monkeypatch)
    yield watched
    watched.reports.close()


async def test_processes_are_journaled_until_they_have_ended(watched: Watched) -> None:
    watched.running = BackgroundWork([process("npm run dev", 1.5)])
    watched.reports.after_turn()
    await eventually_async(lambda: watched.lines)
    listed = {"command": "npm run dev", "since": "2026-01-31T12:00:00+00:00", "cpu_seconds": 1.5}
    assert watched.lines == [{"processes": [listed], "count": 1, "cpu_seconds": 1.5, "complete": True}]

    watched.running = BackgroundWork()
    await eventually_async(lambda: len(watched.lines) == 2)
    assert watched.lines[1] == {"processes": [], "count": 0, "cpu_seconds": 0, "complete": True}

    watched.running = work(*map(str, range(MAX_LISTED + 5)))
    watched.reports.after_turn()
    await eventually_async(lambda: len(watched.lines) == 3)
    assert (len(watched.lines[2]["processes"]), watched.lines[2]["count"]) == (MAX_LISTED, MAX_LISTED + 5)


async def test_running_processes_are_measured_once_a_minute(watched: Watched) -> None:
    watched.running = work("npm run dev")
    watched.reports.after_turn()
    await eventually_async(lambda: watched.lines)
    watched.running = BackgroundWork([process("npm run dev", 9.0)])
    watched.now += 59
    await watched.check_again()
    assert len(watched.lines) == 1

    watched.now += 1
    await eventually_async(lambda: len(watched.lines) == 2)
    assert watched.lines[1]["cpu_seconds"] == 9.0


def test_processes_that_rename_themselves_are_reported_ever_more_rarely(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_module, "_CHECK_INTERVAL", 10.0)
    for second in range(600):
        watched.now += 1
        watched.running = work(f"name {second}")
        watched.reports._report_if_due()
    assert len(watched.lines) < 15

    watched.running = BackgroundWork()
    watched.reports._report_if_due()
    assert watched.reported[-1] == [], "their end is reported at once"


async def test_processes_that_are_not_all_read_are_not_called_none(watched: Watched) -> None:
    watched.running = BackgroundWork([], is_complete=False)
    watched.reports.after_turn()
    await eventually_async(lambda: watched.lines)
    assert (watched.lines[0]["count"], watched.lines[0]["complete"]) == (0, False)


async def test_turn_that_leaves_nothing_journals_nothing(watched: Watched) -> None:
    watched.reports.after_turn()
    await eventually_async(lambda: watched.checks)
    assert (watched.checks, watched.lines) == (1, [])


async def test_output_outside_a_turn_begins_another_watch(watched: Watched) -> None:
    watched.reports.after_turn()
    await eventually_async(lambda: watched.checks)
    watched.running = work("make all")

    def has_reported() -> bool:
        watched.reports.note_output()
        return bool(watched.lines)

    await eventually_async(has_reported)

    assert watched.lines[0]["count"] == 1


@pytest.mark.parametrize(
    ("server", "commands"),
    [
        ({"type": "http", "url": "https://tools.example.org"}, []),
        ({"command": "/opt/tools", "args": ["--fast"]}, ["/opt/tools --fast"]),
        (
            {"command": "npx", "args": ["-y", "@playwright/mcp", "-y"]},
            ["npx -y @playwright/mcp -y", "npm exec @playwright/mcp -y"],
        ),
    ],
)
def test_configured_servers_are_known_by_their_command_lines(server: dict[str, Any], commands: list[str]) -> None:
    assert list(background_module._commands_of_server(server)) == commands


LEFT_IN_A_TURN = """
import subprocess, sys
for line in sys.stdin:
    subprocess.Popen(["sleep", line.strip()])
    print("begun", flush=True)
"""


def test_in_a_turn_only_those_of_earlier_turns_are_left_running() -> None:
    with started_guard(LEFT_IN_A_TURN) as guard:
        pid, background = agent_pid(guard), BackgroundProcesses()
        background.note_work_began(pid)
        begin(guard, "311")
        background.note_work_began(pid)
        begin(guard, "312")

        def running(*, turn_is_open: bool) -> list[str]:
            return [each.command for each in background.running(pid, turn_is_open=turn_is_open).processes]

        eventually(lambda: running(turn_is_open=False) == ["sleep 311", "sleep 312"])
        assert running(turn_is_open=True) == ["sleep 311"]


def test_thousands_of_processes_are_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "MAX_PROCESSES", 3)
    with started_guard(LEFT_IN_A_TURN) as guard:
        pid, background = agent_pid(guard), BackgroundProcesses()
        background.note_work_began(pid)
        for number in range(5):
            begin(guard, f"32{number}")

        running = background.running(pid)

        assert (len(running.processes), running.is_complete) == (3, False)


NAMELESS = """
import ctypes, os, sys, time
child = os.fork()
if child == 0:
    libc = ctypes.CDLL(None)
    start, end = [int(open("/proc/self/stat").read().rpartition(")")[2].split()[place]) for place in (45, 46)]
    ctypes.memset(start, 0, end - start)
    libc.prctl(15, b"quiet) 0 Z (one", 0, 0, 0)
    print("begun", flush=True)
    time.sleep(300)
time.sleep(300)
"""


def test_process_without_a_command_line_is_listed_by_its_name() -> None:
    with started_guard(NAMELESS) as guard:
        assert guard.stdout is not None
        assert guard.stdout.readline() == "begun\n"
        assert "[quiet) 0 Z (one]" in commands_below(agent_pid(guard))


def test_children_are_found_without_the_lists_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "_has_child_lists", lambda: False)
    monkeypatch.setattr(process_tree._ChildLists, "_read", lambda *_: [])
    with started_guard(LEFT_IN_A_TURN) as guard:
        begin(guard, "331")
        eventually(lambda: "sleep 331" in commands_below(guard.pid))
        assert process_tree.descendants_of([guard.pid]).is_complete


def test_secrets_of_the_environment_are_not_named_with_what_ends() -> None:
    with started_guard(LEFT_IN_A_TURN) as left:
        begin(left, "12345678")
        eventually(lambda: "sleep 12345678" in orphan_commands(left.pid, None))

        assert "sleep [redacted]" in orphan_commands(left.pid, None, ["12345678"])
