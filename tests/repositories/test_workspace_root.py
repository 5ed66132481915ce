"""A workspace is built once, even when sandboxes that share it start at the same moment."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson

from executors_app.machine.git import workspace_root
from tests.executors.repositories import run_git
from tests.repositories.workspaces import BRANCH, SESSION, Place

PROJECT = Path(__file__).parents[2]


def test_concurrent_starts_build_one_workspace(place: Place, tmp_path: Path) -> None:
    place.begin()
    place.seed(borrow=False)
    root = tmp_path / "workspace"
    root.mkdir()
    command = [sys.executable, "-m", workspace_root.__name__, "make", "--root", str(root), "--owner", SESSION]
    command += ["--seed", str(place.root / "seed")]
    with ThreadPoolExecutor(6) as pool:
        builders = [
            pool.submit(subprocess.run, command, cwd=PROJECT, capture_output=True, check=False) for _ in range(6)
        ]
    assert [orjson.loads(builder.result().stdout) for builder in builders] == [{"note": ""}] * 6
    worktree = workspace_root.sandbox_worktree_path(root, SESSION, BRANCH)
    assert run_git(worktree.path, "status", "--porcelain") == ""
    assert not list(root.glob("*.damaged-*"))
