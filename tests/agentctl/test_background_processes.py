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
from executors_app.agentctl.process.background import (
    MAX_LISTED,
    BackgroundProcess,
    BackgroundProcesses,
    BackgroundReports,
)
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


@pytest.fixture
def guard() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", GUARD, AGENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as started:
        yield started
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)  # a group of its own, because it leads a session


def agent_pid(guard: subprocess.Popen[str]) -> int:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(guard.pid)], capture_output=True, text=True, check=True)
    return int(listed.stdout.split()[0])


def test_processes_of_turns_are_told_from_the_agents_own(guard: subprocess.Popen[str]) -> None:
    assert guard.stdin is not None
    assert guard.stdout is not None
    assert guard.stdout.readline() == "up\n"
    pid, background = agent_pid(guard), BackgroundProcesses()
    background.note_started(pid)
    assert background.running(pid) == []

    guard.stdin.write("\n")
    guard.stdin.flush()
    assert guard.stdout.readline() == "begun\n"

    def commands() -> set[str]:
        return {process.command for process in background.running(pid)}

    eventually(lambda: {"sleep 301", "sleep 302"} <= commands())
    assert "sleep 300" not in commands()
    for process in background.running(pid):
        age = datetime.now(UTC) - datetime.fromisoformat(process.since)
        assert timedelta(seconds=-2) < age < timedelta(minutes=10), "a time of the wall clock"


@pytest.mark.parametrize("pid", [None, 2**22 + 1])
def test_no_agent_has_no_background_processes(pid: int | None) -> None:
    assert BackgroundProcesses().running(pid) == []


def process(name: str) -> BackgroundProcess:
    return BackgroundProcess(name, "2026-01-31T12:00:00+00:00")


async def test_processes_are_journaled_until_they_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_module, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(background_module, "_CHECK_INTERVAL", 0.01)
    lines: list[dict[str, Any]] = []
    running: list[BackgroundProcess] | None = [process("npm run dev")]

    def record(kind: str, **body: Any) -> None:
        assert kind == "agent.processes"
        lines.append(body)

    reports = BackgroundReports(lambda: running, record)
    reports.after_turn()
    await eventually_async(lambda: lines)
    assert lines == [{"processes": [{"command": "npm run dev", "since": "2026-01-31T12:00:00+00:00"}], "count": 1}]

    running = None  # another turn is open
    reports.after_turn()
    running = []
    await eventually_async(lambda: len(lines) == 2)
    assert lines[1] == {"processes": [], "count": 0}

    running = [process(str(number)) for number in range(MAX_LISTED + 5)]
    reports.after_turn()
    await eventually_async(lambda: len(lines) == 3)
    assert (len(lines[2]["processes"]), lines[2]["count"]) == (MAX_LISTED, MAX_LISTED + 5)
    reports.close()


async def test_turn_that_leaves_nothing_journals_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_module, "_SETTLE_SECONDS", 0.0)
    checked: list[int] = []

    def read() -> list[BackgroundProcess]:
        checked.append(1)
        return []

    reports = BackgroundReports(read, lambda *_, **__: pytest.fail("there is nothing to report"))
    reports.after_turn()
    await eventually_async(lambda: checked)
    assert checked == [1]


async def test_output_outside_a_turn_begins_another_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_module, "_SETTLE_SECONDS", 0.0)
    running: list[BackgroundProcess] = []
    checked: list[int] = []
    lines: list[dict[str, Any]] = []

    def read() -> list[BackgroundProcess]:
        checked.append(1)
        return running

    reports = BackgroundReports(read, lambda _, **body: lines.append(body))
    reports.after_turn()
    await eventually_async(lambda: checked)
    running.append(process("make all"))

    def has_reported() -> bool:
        reports.note_output()
        return bool(lines)

    await eventually_async(has_reported)

    assert lines[0]["count"] == 1
    reports.close()
