"""The runtime on this machine meets the runtime contract, also with sessions that work in one worktree."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from executors_app.agentctl.workspace.snapshots import take_snapshot
from tests.executors.contract import RuntimeContract
from tests.executors.shared_worktrees import SharedWorktreesContract
from tests.workspace.trees import SESSION, git_of, snapshot_tree


class TestLocalStandalone(RuntimeContract):
    """The contract on ``local_standalone``."""


class TestSharedOnThisMachine(SharedWorktreesContract):
    """Sessions that share a worktree on the runtime ``local_standalone``."""


def test_concurrent_guests_both_keep_one_worktree(repository: Path, tmp_path: Path) -> None:
    """Each agentctl has its own copy of the index; the ref is moved only from the value that was read."""
    (repository / "new").write_text("0\n")
    snapshot_tree(repository)
    begin = threading.Barrier(2)

    def keep_often(name: str) -> set[str]:
        kept = set()
        for number in range(10):
            (repository / f"{name}").write_text(f"{number}\n")
            begin.wait(60)
            kept.add(take_snapshot(git_of(repository), SESSION, tmp_path / f"{name}.index", "turn_end").commit)
        return kept

    with ThreadPoolExecutor(2) as both:
        first, second = both.map(keep_often, ["one", "two"])
    assert first
    assert second
    assert snapshot_tree(repository).dirty
