"""Child processes are restarted, end with their parent, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessions_app.management.child_processes import ChildProcess, supervise_children
from tests.services import ROOT
from tests.waiting import PATIENCE, eventually

LONG_LIVED = "import time, pathlib, os; pathlib.Path(str(os.getpid())).touch(); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + LONG_LIVED
WITH_A_CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {LONG_LIVED!r}]); " + LONG_LIVED
PARENT = f"""
import os, sys
from sessions_app.management.child_processes import ChildProcess, supervise_children
os.chdir(sys.argv[1])
child = ChildProcess("one", lambda: exec({LONG_LIVED!r}))
supervise_children([child], stopped=lambda: False)
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def pids_in(directory: Path) -> set[int]:
    """Return the pids of the processes that have reported with a file that they run."""
    return {int(path.name) for path in directory.iterdir()}


@pytest.fixture(autouse=True)
def leave_no_process(tmp_path: Path) -> Iterator[None]:
    yield
    for pid in filter(is_running, pids_in(tmp_path)):
        os.kill(pid, signal.SIGKILL)


def child(program: str, directory: Path) -> ChildProcess:
    def main() -> None:
        os.chdir(directory)
        exec(program, {})  # noqa: S102 - a program of this test

    return ChildProcess("one", main)


def test_child_that_dies_is_restarted(tmp_path: Path) -> None:
    def stopped() -> bool:
        pids = pids_in(tmp_path)
        if len(pids) == 1 and is_running(min(pids)):
            os.kill(min(pids), signal.SIGKILL)
        return len(pids) == 2

    supervise_children([child(LONG_LIVED, tmp_path)], stopped)
    assert not any(map(is_running, pids_in(tmp_path)))


def test_delays_between_quick_deaths_grow_to_a_limit(tmp_path: Path) -> None:
    failing = child("raise SystemExit(1)", tmp_path)
    pauses = []
    now = 0.0
    for _ in range(10):
        failing.start(now)
        assert failing.process
        failing.process.join(PATIENCE)
        failing.restart_if_ended(now)
        pauses.append(failing.starts_at - now)
        now = failing.starts_at
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.5, 30)


def test_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    supervise_children([child(STUBBORN, tmp_path)], stopped=lambda: bool(pids_in(tmp_path)), grace=0.2)
    assert not any(map(is_running, pids_in(tmp_path)))


def test_grandchildren_end_with_their_parent(tmp_path: Path) -> None:
    supervise_children([child(WITH_A_CHILD, tmp_path)], stopped=lambda: len(pids_in(tmp_path)) == 2)
    eventually(lambda: not any(map(is_running, pids_in(tmp_path))), describe="the grandchild has ended")


def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    keeper = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    eventually(lambda: pids_in(tmp_path), describe="the child runs")
    keeper.kill()
    keeper.wait()
    eventually(lambda: not any(map(is_running, pids_in(tmp_path))), describe="the child has ended")
