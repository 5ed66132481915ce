"""Changes inside submodules are shown beside those around them: live, and from saved work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.workspace.changes import create_commit, git_diff, git_status
from executors_app.machine.git.worktrees import Worktree
from executors_app.repositories import recovery_refs
from executors_app.wire.errors import NotKept
from executors_app.wire.protocol import ApiError
from tests.executors.repositories import commit, run_git
from tests.workspace.trees import SESSION, add_submodule, git_of, snapshot_tree


def _change(sub: Path) -> None:
    (sub / "f.txt").write_text("changed\n")
    (sub / "new").write_text("new\n")
    (sub / "staged").write_text("staged\n")
    run_git(sub, "add", "staged")
    (sub / "g.txt").unlink()


CHANGED = [
    {"path": "sub/staged", "change": "added", "side": "staged"},
    {"path": "sub/f.txt", "change": "modified", "side": "unstaged"},
    {"path": "sub/g.txt", "change": "deleted", "side": "unstaged"},
    {"path": "sub/new", "change": "untracked", "side": "untracked"},
]


def _files(status: dict[str, Any]) -> list[dict[str, str]]:
    (submodule,) = status["submodules"]
    assert (submodule["path"], submodule["count"], submodule["problem"]) == ("sub", len(submodule["files"]), "")
    return list(submodule["files"])


def test_changed_files_of_a_submodule_are_listed_with_their_diffs(place: Worktree) -> None:
    git = git_of(place.path)
    assert git_status(git)["clean"]
    _change(place.path / "sub")

    status = git_status(git)

    assert _files(status) == CHANGED
    assert not status["clean"]
    assert (status["unstaged"], status["untracked"]) == ([], [])
    diff = git_diff(git, "sub/f.txt")
    assert "+changed" in diff["unstaged"]
    assert "+staged" in git_diff(git, "sub/staged")["staged"]
    with pytest.raises(ApiError):
        git_diff(git, "sub/nothing")


def test_changes_of_a_nested_submodule_are_listed(place: Worktree, library: Path) -> None:
    add_submodule(place.path / "sub", library, "inner")
    (place.path / "sub" / "inner" / "f.txt").write_text("deep\n")

    status = git_status(git_of(place.path))

    assert [each["path"] for each in status["submodules"]] == ["sub/inner"]
    assert [entry["path"] for entry in status["unstaged"]] == ["sub"], "its new commit can be committed"
    assert "+deep" in git_diff(git_of(place.path), "sub/inner/f.txt")["unstaged"]


def test_files_of_a_submodule_cannot_be_committed_around_it(place: Worktree) -> None:
    (place.path / "sub" / "f.txt").write_text("changed\n")
    git = git_of(place.path)
    for only in ([], ["sub"]):
        with pytest.raises(ApiError, match="changes inside a submodule are committed there first"):
            create_commit(git, "All", None, only)
    with pytest.raises(ApiError, match=r"sub/f\.txt is inside the submodule sub: commit it there first"):
        create_commit(git, "One", None, ["sub/f.txt"])
    commit(place.path / "sub", "f.txt", "changed\n")
    create_commit(git, "New commit of sub", None, ["sub"])
    assert git_status(git)["clean"]


def test_submodule_that_cannot_be_examined_is_named(place: Worktree, tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere"
    (place.path / "sub" / ".git").rename(tmp_path / "pointer")
    outside.mkdir()
    run_git(outside, "init", "--quiet")
    (place.path / "sub" / ".git").write_text(f"gitdir: {outside / '.git'}\n")

    (submodule,) = git_status(git_of(place.path))["submodules"]

    assert "outside of the workspace" in submodule["problem"]


def test_status_runs_no_filter_of_a_submodule(place: Worktree, tmp_path: Path) -> None:
    sub, trap = place.path / "sub", tmp_path / "trap"
    run_git(sub, "config", "filter.evil.clean", f"touch {trap}; cat")
    (sub / ".gitattributes").write_text("* filter=evil\n")
    (sub / "f.txt").write_text("LIB\n")
    assert git_status(git_of(place.path))["submodules"][0]["count"] == 2
    assert git_diff(git_of(place.path), "sub/f.txt")["unstaged"]
    assert git_diff(git_of(place.path))["unstaged"] == ""
    assert not trap.exists()


def test_saved_work_shows_what_is_inside_submodules(db: None, repository: Path, place: Worktree) -> None:
    _change(place.path / "sub")
    snapshot_tree(place.path)

    kept = recovery_refs.find_saved_work(repository, SESSION, place.branch)

    status = recovery_refs.saved_status(kept)
    assert sorted(_files(status), key=str) == sorted(CHANGED, key=str)
    assert not status["clean"]
    assert "+changed" in recovery_refs.saved_diff(kept, "sub/f.txt")["unstaged"]
    assert "+staged" in recovery_refs.saved_diff(kept, "sub/staged")["staged"]
    types = {each["name"]: each["type"] for each in recovery_refs.list_saved_directory(kept, "")["entries"]}
    assert types["sub"] == "directory"
    names = [each["name"] for each in recovery_refs.list_saved_directory(kept, "sub")["entries"]]
    assert names == ["f.txt", "new", "staged"]
    assert recovery_refs.read_saved_content(kept, "sub/f.txt")["content"] == "changed\n"
    with pytest.raises(NotKept):
        recovery_refs.read_saved_content(kept, "sub/g.txt")
