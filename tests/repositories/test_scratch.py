"""A scratch repository is complete from the start, and its configuration is never obeyed."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors_app.repositories import bare
from executors_app.repositories.scratch import create_scratch_repository
from tests.executors.repositories import commit, run_git
from tests.repositories import attacks
from tests.repositories.attacks import Trap


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path / "trap").set_up()


def test_scratch_repository_is_clean_and_usable(tmp_path: Path) -> None:
    path = tmp_path / "scratch"
    create_scratch_repository(path, "# Hello\n")
    # No branch is checked out, so that a merge can be tried.
    assert run_git(path, "status", "--porcelain", "--branch") == "## HEAD (no branch)"
    assert run_git(path, "show", "HEAD:README.md") == "# Hello"
    run_git(path, "fsck", "--strict")
    run_git(path, "worktree", "add", "--quiet", str(tmp_path / "side"), "-b", "side")
    made = commit(path, "more", "x")
    create_scratch_repository(path, "# Hello\n")
    assert run_git(path, "rev-parse", "HEAD") == made


@pytest.mark.parametrize("with_commit", [False, True])
def test_configuration_of_a_scratch_repository_is_not_obeyed(with_commit: bool, tmp_path: Path, trap: Trap) -> None:
    """An agent of an earlier test may have written it."""
    path = tmp_path / "scratch"
    if with_commit:
        create_scratch_repository(path, "# Hello\n")
    else:
        path.mkdir()
        run_git(path, "init", "--quiet")
    with (path / ".git/config").open("a") as config:
        config.write(f'[core]\n\tfsmonitor = "{trap.script}"\n\thooksPath = "{trap.outside}"\n[filter "x"]\n')
        config.write(f'\tclean = "{trap.script}"\n')
    (path / ".git/info").mkdir(exist_ok=True)
    (path / ".git/info/attributes").write_text("* filter=x\n")
    attacks.FILES["hooks"](path / ".git", trap)
    create_scratch_repository(path, "# Hello\n")
    assert not trap.canary.exists()
    assert [found.name for found in path.glob(".git-unfinished-*")] == [] or not with_commit


def test_creation_that_fails_leaves_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("The disk is full.")

    path = tmp_path / "scratch"
    with monkeypatch.context() as patched:
        patched.setattr(bare, "update_refs", fail)
        with pytest.raises(OSError, match="disk is full"):
            create_scratch_repository(path, "# Hello\n")
    assert list(path.iterdir()) == []
    create_scratch_repository(path, "# Hello\n")
    assert run_git(path, "status", "--porcelain") == ""
