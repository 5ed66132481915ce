"""Work inside the submodules of a sandbox is transferred with its snapshot, and returns into a new sandbox."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from executors_app.agentctl.workspace.snapshots import take_snapshot
from executors_app.machine.git import workspace_root
from executors_app.machine.git.worktrees import Worktree
from executors_app.repositories.workspace_store import publish
from executors_app.wire.errors import BundleRefused
from tests.executors.repositories import commit, make_repository, run_git
from tests.repositories.workspaces import BRANCH, RECOVERY, SESSION, Place
from tests.workspace.trees import git_of, state_of

LOCAL = ("-c", "protocol.file.allow=always")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    library = make_repository(tmp_path / "library", "f.txt", "lib\n")
    made = make_repository(tmp_path / "team")
    run_git(made, *LOCAL, "submodule", "--quiet", "add", str(library), "sub")
    run_git(made, "commit", "--quiet", "-m", "with a submodule")
    return made


def _make(place: Place, root: Path) -> Worktree:
    """Create a sandbox's workspace from what has arrived."""
    place.seed(borrow=True)
    root.mkdir()
    with (place.root / "seed").open("rb") as seed:
        workspace_root.make_workspace_from_file(seed, root, SESSION)
    return workspace_root.sandbox_worktree_path(root, SESSION, BRANCH)


def _send(place: Place, root: Path, worktree: Worktree) -> None:
    """Take a snapshot and send what has not arrived yet."""
    take_snapshot(git_of(worktree.path), SESSION, root / "copy", "turn_end")
    bundle = root / "bundle"
    with bundle.open("wb") as into:
        known = sorted(place.archive.tips().values())
        packed = workspace_root.pack_work(workspace_root.sandbox_repository_path(root), worktree, known, into)
    if packed["packed"]:
        place.archive.take_in(bundle, BRANCH)
    place.archive.follow(BRANCH, packed["refs"])
    publish(place.team, place.archive, BRANCH)


def _work(sub: Path) -> None:
    run_git(sub, "switch", "--quiet", "-c", "work")
    commit(sub, "f.txt", "one\n")
    (sub / "staged").write_text("first\n")
    run_git(sub, "add", "staged")
    (sub / "new").write_text("precious\n")


def test_work_inside_a_submodule_returns_from_the_archive(place: Place, tmp_path: Path) -> None:
    place.begin()
    first = _make(place, tmp_path / "first")
    run_git(first.path, *LOCAL, "submodule", "--quiet", "update", "--init")
    _work(first.path / "sub")
    _send(place, tmp_path / "first", first)
    (first.path / "sub" / "new").write_text("changed\n")
    _send(place, tmp_path / "first", first)
    state, head = state_of(first.path), run_git(first.path / "sub", "rev-parse", "HEAD")
    inner = state_of(first.path / "sub")
    shutil.rmtree(tmp_path / "first")
    shutil.rmtree(tmp_path / "library")

    second = _make(place, tmp_path / "second")

    assert state_of(second.path) == state
    assert state_of(second.path / "sub") == inner
    assert run_git(second.path / "sub", "rev-parse", "HEAD", "work").split() == [head, head]
    run_git(second.path / "sub", "fsck")
    _send(place, tmp_path / "second", second)
    assert run_git(place.repository, "rev-parse", RECOVERY) == place.archive.tips()[RECOVERY]


def test_work_inside_submodules_counts_against_the_limits_of_a_transfer(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.begin()
    first = _make(place, tmp_path / "first")
    run_git(first.path, *LOCAL, "submodule", "--quiet", "update", "--init")
    (first.path / "sub" / "large").write_text("x" * 100_000)
    before = place.archive.tips()
    monkeypatch.setattr("executors_app.repositories.transfer.OBJECT_LIMIT", 50_000)
    with pytest.raises(BundleRefused, match="too large"):
        _send(place, tmp_path / "first", first)
    assert place.archive.tips() == before
