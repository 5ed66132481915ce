"""agentctl and its children run as two users, with the rights that the kernel enforces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from executors_app.machine.process import spawning
from executors_app.machine.process.spawning import AGENTCTL_UID
from tests.services import ROOT

OWNER = 54321
ATTEMPTS = (
    "kill -9 {agentctl}",
    "cat /proc/{agentctl}/mem",
    "cat kept/token",
    "ls kept",
    "cat /proc/{agentctl}/environ",
    "ls /proc/{agentctl}/fd",
    "echo 1000 > /proc/{agentctl}/oom_score_adj",
    "taskset --all-tasks --pid 1 {agentctl}",
    "renice -n 19 {agentctl}",
)
AS_AGENTCTL = """
import ctypes, json, os, subprocess, sys
from executors_app.machine.process import spawning
spawning.drop_privileges(sys.argv[1])
open("made", "w").close()
def child(*argv):
    return subprocess.run(argv, capture_output=True, text=True, **spawning.child_user_arguments())
told = {"self": os.getresuid(), "child": child("cat", "/proc/self/status").stdout, "token": open("kept/token").read()}
told["dumpable"] = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
told["codes"] = [child("sh", "-c", attempt.format(agentctl=os.getpid())).returncode for attempt in sys.argv[2:]]
print(json.dumps(told))
"""


@pytest.mark.parametrize("spec", ["", "1000", "a:b", "1000:1000:1", "-1:0", "0:0", "0:1000", f"{AGENTCTL_UID}:0"])
def test_invalid_run_as_user_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="--run-as"):
        spawning.drop_privileges(spec)


def test_agentctl_is_not_dumpable_whatever_the_system_prefers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ``fs.suid_dumpable`` is 0, as usual, the change of users alone has the same effect."""
    calls = list[tuple[Any, ...]]()
    for name in ("setgroups", "setresgid", "setresuid"):
        monkeypatch.setattr(os, name, lambda *arguments, name=name: calls.append((name, *arguments)))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(spawning, "_keep_capability", lambda capability: calls.append(("keep", capability)))
    monkeypatch.setattr(spawning, "_prctl", lambda *arguments: calls.append(("prctl", *arguments)))
    spawning.drop_privileges(f"{OWNER}:{OWNER}")
    assert ("setresuid", AGENTCTL_UID, OWNER, AGENTCTL_UID) in calls
    assert calls[-1] == ("prctl", spawning._PR_SET_DUMPABLE, 0)


def test_children_run_as_the_same_user_by_default() -> None:
    assert spawning.child_user_arguments() == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_children_have_only_the_owners_rights_and_cannot_touch_agentctl(tmp_path: Path) -> None:
    owner = OWNER
    report = run_as(tmp_path, owner)

    assert report["self"] == [AGENTCTL_UID, owner, AGENTCTL_UID]
    assert report["dumpable"] == 0
    child = dict(line.split(":", 1) for line in report["child"].splitlines())
    assert (child["Uid"].split(), child["Gid"].split(), child["Groups"].split()) == ([str(owner)] * 4,) * 2 + ([],)
    assert {child[f"Cap{name}"].strip() for name in ("Inh", "Prm", "Eff", "Amb")} == {"0" * 16}
    assert (tmp_path / "made").stat().st_uid == owner, "a file that agentctl writes belongs to the owner"
    assert report["token"] == "secret"
    assert [tried for tried, code in zip(ATTEMPTS, report["codes"], strict=True) if code == 0] == []


FORKED_AS_OWNER = """
import json, os, subprocess, sys
from executors_app.machine.process import spawning
spawning.drop_privileges(sys.argv[1])
if os.fork() == 0:
    spawning.become_owner()
    attempts = [attempt.format(agentctl=os.getpid()) for attempt in sys.argv[2:]]
    told = [subprocess.run(["sh", "-c", attempt], capture_output=True).returncode for attempt in attempts]
    print(json.dumps(told), flush=True)
    os._exit(0)
os.wait()
"""
ATTEMPTS_ON_A_FORK = (
    "cat /proc/{agentctl}/environ",
    "dd if=/proc/{agentctl}/mem bs=1 count=1",
    "ls /proc/{agentctl}/fd",
)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_programs_of_the_owner_cannot_read_a_fork_of_agentctl_that_became_the_owner() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED_AS_OWNER, f"{OWNER}:{OWNER}", *ATTEMPTS_ON_A_FORK],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert 0 not in json.loads(done.stdout)


def run_as(directory: Path, owner: int) -> dict[str, Any]:
    """Run agentctl's steps in a directory of ``owner``, with a token that only agentctl's group can read."""
    kept = directory / "kept"
    kept.mkdir()
    (kept / "token").write_text("secret")
    for path in (directory, kept / "token"):
        os.chown(path, owner, owner)
    os.chown(kept, AGENTCTL_UID, AGENTCTL_UID)
    kept.chmod(0o710)
    done = subprocess.run(
        [sys.executable, "-c", AS_AGENTCTL, f"{owner}:{owner}", *ATTEMPTS],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document
