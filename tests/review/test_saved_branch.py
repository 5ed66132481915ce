"""What a branch has changed is readable from saved work, with the same answers as from the workspace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.workspace import branch_review
from executors_app.machine.git import branch_changes
from executors_app.machine.git.worktrees import Worktree
from executors_app.repositories import recovery_refs, saved_branch
from executors_app.wire.errors import NotKept
from tests.executors.repositories import commit, run_git
from tests.workspace.trees import SESSION, git_of, snapshot_tree

pytestmark = pytest.mark.any_database


@pytest.fixture
def root(repository: Path, worktree: Worktree) -> Path:
    """Return a worktree with committed and uncommitted changes of all kinds, of which a snapshot was taken."""
    for name in ("crlf", "mode", "gone", "old name", "large"):
        commit(repository, name, "".join(f"{name} {number}\n" for number in range(20)))
    run_git(worktree.path, "merge", "--quiet", "--ff-only", base_of(repository))
    root = worktree.path
    commit(root, "committed", "one\n")
    run_git(root, "mv", "old name", "new name")
    run_git(root, "commit", "--quiet", "-m", "Rename")
    (root / "crlf").write_bytes((root / "crlf").read_bytes().replace(b"\n", b"\r\n"))
    (root / "mode").chmod(0o755)
    (root / "gone").unlink()
    (root / "large").write_text("x" * (branch_changes.LARGE_FILE + 1))
    (root / "picture").write_bytes(b"\0\xff")
    (root / "link").symlink_to("README")
    (root / "new").write_text("a\nb")
    snapshot_tree(root)
    return root


def base_of(repository: Path) -> str:
    return run_git(repository, "branch", "--show-current")


def saved(repository: Path, worktree: Worktree, base: str = "") -> tuple[Any, Any]:
    kept = recovery_refs.find_saved_work(repository, SESSION, worktree.branch)
    return kept, saved_branch.compare_saved(kept, repository, base)


def test_saved_changes_are_those_of_the_workspace(repository: Path, worktree: Worktree, root: Path) -> None:
    git = git_of(root)
    live = branch_review.list_branch_changes(git, base_of(repository))
    paths = [file["path"] for file in live["files"]]
    live_hunks = branch_review.branch_hunks(git, base_of(repository), paths, 3)
    git.close()
    run_git(repository, "worktree", "remove", "--force", str(root))
    found = saved(repository, worktree)

    kept = saved_branch.saved_branch_changes(*found)
    hunks = saved_branch.saved_branch_hunks(*found, paths, 3)

    assert kept.pop("kept")["commit"]
    assert kept == live
    assert {file["path"]: (file["change"], file["content"]) for file in kept["files"]} == {
        "committed": ("added", "text"),
        "crlf": ("line_ends_only", "text"),
        "gone": ("deleted", "text"),
        "large": ("modified", "large"),
        "link": ("added", "symlink"),
        "mode": ("mode_only", "text"),
        "new": ("added", "text"),
        "new name": ("renamed", "text"),
        "picture": ("added", "binary"),
    }
    assert hunks.pop("kept")["commit"]
    assert hunks == live_hunks


def test_base_that_is_gone_leaves_uncommitted_changes(repository: Path, worktree: Worktree, root: Path) -> None:
    kept = saved_branch.saved_branch_changes(*saved(repository, worktree, "no such branch"))
    assert (kept["base"]["problem"], kept["ahead"]) == ("not_found", None)
    assert "committed" not in {file["path"] for file in kept["files"]}
    assert "new" in {file["path"] for file in kept["files"]}


def test_path_that_leads_elsewhere_is_refused(repository: Path, worktree: Worktree, root: Path) -> None:
    for path in ("../up", "/etc/passwd"):
        with pytest.raises(NotKept):
            saved_branch.saved_branch_hunks(*saved(repository, worktree), [path], 3)


def test_saved_file_is_uncommitted_under_both_names_and_its_name_may_be_no_utf_8(
    repository: Path, worktree: Worktree
) -> None:
    lines = "".join(f"line {number}\n" for number in range(40))
    commit(worktree.path, "text", lines)
    commit(worktree.path, "text", lines.replace("line", "other"))
    run_git(worktree.path, "mv", "text", os.fsdecode(b"moved \xff"))
    snapshot_tree(worktree.path)
    found = saved(repository, worktree, run_git(worktree.path, "rev-parse", "HEAD~1"))
    files = saved_branch.saved_branch_changes(*found)["files"]
    assert [(file["path"], file["change"], file["uncommitted"]) for file in files] == [
        ("moved \ufffd", "added", True),
        ("text", "deleted", True),
    ]
    (shown,) = saved_branch.saved_branch_hunks(*found, ["moved \ufffd"], 3)["files"]
    assert len(shown["hunks"][0]["lines"]) == 40


def test_saved_list_that_git_cut_before_its_counts_has_counts(
    repository: Path, worktree: Worktree, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_branch, "LIST_LIMIT", 500)
    found = saved_branch.saved_branch_changes(*saved(repository, worktree))
    assert found["truncated"]
    assert [(file["path"], file["additions"]) for file in found["files"]] == [
        ("committed", 1),
        ("crlf", 20),
        ("gone", 0),
        ("large", None),
    ]
