"""agentctl and its children run as two users, with the rights that the kernel enforces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.process import spawning
from executors_app.agentctl.process.spawning import AGENTCTL_UID
from tests.services import ROOT

OWNER = 54321
ATTEMPTS = (
    "kill -9 {agentctl}",
    "cat /proc/{agentctl}/mem",
    "cat /proc/{agentctl}/environ",
    "cat kept/token",
    "ls kept",
)
AS_AGENTCTL = """
import json, os, subprocess, sys
from executors_app.agentctl.process import spawning
spawning.drop_privileges(sys.argv[1])
open("made", "w").close()
def child(*argv):
    return subprocess.run(argv, capture_output=True, text=True, **spawning.child_user_arguments())
told = {"self": os.getresuid(), "child": child("cat", "/proc/self/status").stdout, "token": open("kept/token").read()}
told["codes"] = [child("sh", "-c", attempt.format(agentctl=os.getpid())).returncode for attempt in sys.argv[2:]]
print(json.dumps(told))
"""


@pytest.mark.parametrize("spec", ["", "1000", "a:b", "1000:1000:1", "-1:0", f"{AGENTCTL_UID}:0"])
def test_invalid_run_as_user_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="--run-as"):
        spawning.drop_privileges(spec)


def test_children_run_as_the_same_user_by_default() -> None:
    assert spawning.child_user_arguments() == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("owner", [0, OWNER])
def test_children_have_only_the_owners_rights_and_cannot_touch_agentctl(tmp_path: Path, owner: int) -> None:
    told = run_as(tmp_path, owner)

    assert told["self"] == [AGENTCTL_UID, owner, AGENTCTL_UID]
    child = dict(line.split(":", 1) for line in told["child"].splitlines())
    assert (child["Uid"].split(), child["Gid"].split(), child["Groups"].split()) == ([str(owner)] * 4,) * 2 + ([],)
    assert {child[f"Cap{name}"].strip() for name in ("Inh", "Prm", "Eff", "Amb")} == {"0" * 16}
    assert (tmp_path / "made").stat().st_uid == owner, "a file that agentctl writes belongs to the owner"
    assert told["token"] == "secret"
    assert 0 not in told["codes"]


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
    told: dict[str, Any] = json.loads(done.stdout)
    return told
