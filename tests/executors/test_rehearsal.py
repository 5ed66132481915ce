"""The execution that a launcher serves before it forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from executors_app.agentctl.local_runtime import launcher
from tests.services import ROOT

REHEARSED = """
import os, signal, threading
from executors_app.agentctl.local_runtime.launcher import rehearse
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
    launcher._prepare()
    assert "nothing can be served here" in caplog.text
