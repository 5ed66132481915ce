"""A detached process inherits nothing: no group, environment, open files or blocked signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from executors_app.machine.agentctl_process import start_detached
from executors_app.machine.process import identity
from tests.services import ROOT
from tests.waiting import eventually

REPORT = """
import json, os, signal, sys, time
blocked = [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
ignored = [int(n) for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN]
umask = os.umask(0)
report = dict(pid=os.getpid(), pgid=os.getpgid(0), sid=os.getsid(0), parent=os.getppid(), cwd=os.getcwd(),
              environment=dict(os.environ), files=sorted(os.listdir("/proc/self/fd")), blocked=blocked,
              ignored=ignored, umask=umask)
open(sys.argv[1] + ".new", "w").write(json.dumps(report))
os.rename(sys.argv[1] + ".new", sys.argv[1])
print("hello log")
sys.stdout.flush()
time.sleep(60)
"""


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Return what a detached process sees of itself, started by a process with much to inherit."""
    monkeypatch.setenv("DATABASE_URL", "a secret")
    open_socket = socket.socket()
    os.set_inheritable(open_socket.fileno(), True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    path = tmp_path / "report.json"
    try:
        argv = [sys.executable, "-I", "-c", REPORT, str(path)]
        with (tmp_path / "log").open("w") as log:
            pid = start_detached(argv, environment={"ONLY": "this"}, log=log.fileno())
    finally:
        signal.signal(signal.SIGHUP, ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        open_socket.close()
    who = identity.identify(pid)
    assert who is not None
    try:
        eventually(path.exists, describe="the report exists")
        eventually(lambda: "hello log" in (tmp_path / "log").read_text(), describe="the log has the process's output")
        read: dict[str, object] = json.loads(path.read_text())
        assert read["pid"] == pid
        return read
    finally:
        identity.kill_all([who], 5)


def test_detached_process_leads_its_own_session(report: dict[str, object]) -> None:
    assert report["pid"] == report["pgid"] == report["sid"]
    assert report["parent"] in (1, os.getpid()), "the parent is init, or this process if it is a subreaper"


def test_detached_process_inherits_nothing(report: dict[str, object]) -> None:
    environment = report["environment"]
    assert isinstance(environment, dict)
    assert {name for name in environment if not name.startswith("LC_")} == {"ONLY"}
    assert report["cwd"] == "/"
    assert report["umask"] == 0o077
    assert report["blocked"] == []
    assert signal.SIGHUP not in report["ignored"]  # type: ignore[operator]
    files = report["files"]
    assert isinstance(files, list)
    assert len(files) == 4, "0, 1, 2 and the listed directory are open"


def test_detached_process_survives_a_kill_of_its_starters_group(tmp_path: Path) -> None:
    starter = (
        "import sys, time; from pathlib import Path\n"
        "from executors_app.machine.agentctl_process import start_detached\n"
        "pid = start_detached([sys.executable, '-I', '-c', 'import time; time.sleep(60)'],"
        "environment={}, log=open(sys.argv[1], 'w').fileno());"
        "print(pid, flush=True); time.sleep(60)"
    )
    argv = [sys.executable, "-c", starter, str(tmp_path / "log")]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    who = identity.identify(int(process.stdout.readline()))
    assert who is not None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    try:
        assert identity.is_alive(who)
    finally:
        identity.kill_all([who], 5)
