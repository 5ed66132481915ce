"""``manage.py demo`` works with real processes and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from executors_app.machine.process import identity
from sessions_app.demo.temporary_deployment import TemporaryDeployment
from tests.services import ROOT
from tests.waiting import PATIENCE, eventually


@contextmanager
def demo(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the demo with all of its files under ``directory``."""
    argv = [sys.executable, "manage.py", "demo", "--work", "30"]
    env = {**os.environ, "TMPDIR": str(directory), "KANDEV_DATA_DIR": str(directory / "of-the-caller")}
    with subprocess.Popen(
        argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def left_over(directory: Path) -> list[str]:
    """Return the directories of demos, and the processes that run in one."""
    place = str(directory / "kandev-demo-").encode()
    processes = [pid for pid in identity.list_pids() if any(place in entry for entry in identity.read_environment(pid))]
    return [path.name for path in directory.glob("kandev-demo-*")] + [str(pid) for pid in processes]


def test_demo_shows_every_step_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        words, _ = process.communicate(timeout=300)
    assert process.returncode == 0, words
    assert re.search(r"kill -9: web \d+, supervisor \d+, worker \d+ \(\d+ processes in total\)", words)
    for sentence in (
        "All agent processes are still running",
        "reattached the session: same process (verified)",
        "Identical bytes",
        "was not sent again",
        "the word from act 1: walrus",
        "told that its last turn was interrupted",
        "All checks passed.",
    ):
        assert sentence in words
    assert left_over(tmp_path) == []


def test_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        lines = process.stdout
        assert lines
        eventually(lambda: "agent output:" in lines.readline(), timeout=180, describe="the agent writes")
        assert left_over(tmp_path)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)
    assert process.returncode == 143
    assert left_over(tmp_path) == []


def test_processes_started_during_the_kill_are_ended_too() -> None:
    demonstration = TemporaryDeployment()
    child = subprocess.Popen(["sleep", "600"], env={"KANDEV_DATA_DIR": str(demonstration.data)}, start_new_session=True)
    demonstration.close()
    assert child.wait(timeout=PATIENCE) == -signal.SIGKILL
    assert not demonstration.home.exists()
