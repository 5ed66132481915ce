"""Unstaging and discarding changes only exactly what was shown, of any kind of file."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.workspace import discarded_files, uncommitted
from executors_app.agentctl.workspace.changes import git_status
from executors_app.machine.git.workspace_git import WorkspaceGit
from executors_app.wire.protocol import ApiError
from tests.agentctl.running import Running
from tests.executors.repositories import commit, make_repository, run_git


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository with a file ``a`` of three lines."""
    made = make_repository(tmp_path / "repository")
    commit(made, "a", "1\n2\n3\n")
    return made


@pytest.fixture
def git(root: Path) -> Any:
    made = WorkspaceGit(root, {})
    yield made
    made.close()
    assert not list(root.rglob("*.discarded"))


def status(git: WorkspaceGit) -> dict[str, Any]:
    found = git_status(git)
    return {key: found[key] for key in ("staged", "unstaged", "untracked", "conflicted") if found[key]}


def undo(git: WorkspaceGit, path: str, action: str) -> dict[str, Any]:
    shown = uncommitted.show_loss(git, path, action)
    uncommitted.carry_out(git, path, action, shown["version"])
    return shown


def test_partly_staged_file_keeps_what_is_staged_or_what_is_not(root: Path, git: WorkspaceGit) -> None:
    (root / "a").write_text("staged\n2\n3\n")
    run_git(root, "add", "a")
    (root / "a").write_text("staged\n2\nlater\n")
    shown = undo(git, "a", "discard")
    assert "-3\n+later" in shown["lines"]
    assert "What is staged stays." in shown["sentence"]
    assert (root / "a").read_text() == "staged\n2\n3\n"
    assert status(git) == {"staged": [{"path": "a", "change": "modified"}]}

    (root / "a").write_text("other\n")
    shown = undo(git, "a", "unstage")
    assert "+staged" in shown["lines"]
    assert "differs from what is staged" in shown["sentence"]
    assert (root / "a").read_text() == "other\n"
    assert status(git) == {"unstaged": [{"path": "a", "change": "modified"}]}


def test_new_file_is_unstaged_and_then_deleted(root: Path, git: WorkspaceGit) -> None:
    (root / "folder").mkdir()
    (root / "folder/grüße x").write_text("hello\nthere")
    run_git(root, "add", "--all")
    undo(git, "folder/grüße x", "unstage")
    assert status(git) == {"untracked": ["folder/grüße x"]}
    assert undo(git, "folder/grüße x", "discard")["lines"] == "+hello\n+there"
    assert status(git) == {}


def test_deleted_and_renamed_files_return(root: Path, git: WorkspaceGit) -> None:
    (root / "a").unlink()
    assert undo(git, "a", "discard")["sentence"] == "The file returns. Nothing is lost."
    assert (root / "a").read_text() == "1\n2\n3\n"
    run_git(root, "mv", "a", "b")
    undo(git, "b", "unstage")
    assert status(git) == {"unstaged": [{"path": "a", "change": "deleted"}], "untracked": ["b"]}
    run_git(root, "rm", "--quiet", "--cached", "a")
    undo(git, "a", "unstage")
    undo(git, "a", "discard")
    undo(git, "b", "discard")
    assert status(git) == {}


def test_no_hook_runs(root: Path, git: WorkspaceGit) -> None:
    (root / "a").write_text("staged\n")
    run_git(root, "add", "a")
    (root / "a").write_text("later\n")
    for name in ("post-checkout", "post-index-change", "pre-commit"):
        hook = root / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\ntouch ran\n")
        hook.chmod(0o755)
    undo(git, "a", "discard")
    undo(git, "a", "unstage")
    assert not (root / "ran").exists()


def test_links_modes_and_types_are_restored(root: Path, git: WorkspaceGit) -> None:
    (root / "a").chmod(0o755)
    undo(git, "a", "discard")
    assert not (root / "a").stat().st_mode & 0o100
    (root / "a").unlink()
    (root / "a").symlink_to("/etc/passwd")
    assert "/etc/passwd" in undo(git, "a", "discard")["lines"]
    assert not (root / "a").is_symlink()
    (root / "link").symlink_to("a")
    assert undo(git, "link", "discard")["lines"] == "+a"
    assert status(git) == {}


def test_conflict_ends_with_the_branchs_own_side(root: Path, git: WorkspaceGit) -> None:
    run_git(root, "switch", "--quiet", "-c", "theirs")
    commit(root, "a", "theirs\n")
    run_git(root, "switch", "--quiet", "-")
    commit(root, "a", "ours\n")
    with pytest.raises(subprocess.CalledProcessError):
        run_git(root, "merge", "theirs")
    assert status(git) == {"conflicted": ["a"]}
    with pytest.raises(ApiError, match="conflict"):
        uncommitted.show_loss(git, "a", "unstage")
    assert "+theirs" in undo(git, "a", "discard")["lines"]
    assert ((root / "a").read_text(), status(git)) == ("ours\n", {})


def _write(root: Path) -> None:
    (root / "a").write_text("written meanwhile\n")


def _stage(root: Path) -> None:
    run_git(root, "add", "a")


def _mode(root: Path) -> None:
    (root / "a").chmod(0o700)


@pytest.mark.parametrize("change", [_write, _stage, _mode])
@pytest.mark.parametrize("action", ["discard", "unstage"])
def test_file_that_changed_meanwhile_is_left_as_it_is(
    root: Path, git: WorkspaceGit, action: str, change: Callable[[Path], None]
) -> None:
    (root / "a").write_text("staged\n")
    run_git(root, "add", "a")
    (root / "a").write_text("seen\n")
    shown = uncommitted.show_loss(git, "a", action)
    change(root)
    before = ((root / "a").read_text(), run_git(root, "ls-files", "--stage"))
    with pytest.raises(ApiError) as refused:
        uncommitted.carry_out(git, "a", action, shown["version"])
    assert refused.value.code in ("file_changed", "conflict")
    assert ((root / "a").read_text(), run_git(root, "ls-files", "--stage")) == before


def test_write_in_the_last_moment_is_put_back(root: Path, git: WorkspaceGit, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a").write_text("seen\n")
    shown = uncommitted.show_loss(git, "a", "discard")
    rename = os.rename

    def write_before(source: str, target: str, **folders: int) -> None:
        (root / "a").write_text("written in the last moment\n")
        rename(source, target, **folders)

    monkeypatch.setattr(os, "rename", write_before)
    with pytest.raises(ApiError) as refused:
        uncommitted.carry_out(git, "a", "discard", shown["version"])
    assert (refused.value.code, (root / "a").read_text()) == ("file_changed", "written in the last moment\n")


def test_what_stands_in_the_place_of_a_file_is_never_removed(root: Path, git: WorkspaceGit) -> None:
    (root / "a").unlink()
    (root / "a").mkdir()
    (root / "a/work").write_text("x")
    with pytest.raises(ApiError, match="no plain file"):
        uncommitted.show_loss(git, "a", "discard")
    (root / "sub").mkdir()
    commit(root, "sub/b", "x\n")
    run_git(root, "rm", "--quiet", "-r", "--cached", "sub")
    (root / "sub/b").unlink()
    (root / "sub").rmdir()
    (root / "sub").write_text("a file")
    undo(git, "sub/b", "unstage")
    with pytest.raises(ApiError):
        undo(git, "sub/b", "discard")
    assert (root / "sub").read_text() == "a file"


def test_announced_file_is_unstaged_first(root: Path, git: WorkspaceGit) -> None:
    (root / "new").write_text("x\n")
    run_git(root, "add", "--intent-to-add", "new")
    with pytest.raises(ApiError, match="unstage it first"):
        uncommitted.show_loss(git, "new", "discard")
    undo(git, "new", "unstage")
    assert status(git) == {"untracked": ["new"]}


def test_directory_that_appears_in_the_last_moment_is_put_back(
    root: Path, git: WorkspaceGit, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "new").write_text("seen\n")
    shown = uncommitted.show_loss(git, "new", "discard")
    rename = os.rename

    def replace_before(source: str, target: str, **folders: int) -> None:
        monkeypatch.undo()
        (root / "new").unlink()
        (root / "new").mkdir()
        (root / "new/work").write_text("precious\n")
        rename(source, target, **folders)

    monkeypatch.setattr(os, "rename", replace_before)
    with pytest.raises(ApiError, match="no plain file"):
        uncommitted.carry_out(git, "new", "discard", shown["version"])
    assert (root / "new/work").read_text() == "precious\n"


def test_file_is_put_back_where_files_cannot_have_two_names(
    root: Path, git: WorkspaceGit, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_text("seen\n")
    shown = uncommitted.show_loss(git, "a", "discard")

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    (root / ".git/index.lock").touch()
    with pytest.raises(ApiError):
        uncommitted.carry_out(git, "a", "discard", shown["version"])
    assert (root / "a").read_text() == "seen\n"


def test_rename_that_git_sees_only_now_is_not_undone(root: Path, git: WorkspaceGit) -> None:
    (root / "b").write_text("1\n2\n3\n")
    run_git(root, "add", "b")
    shown = uncommitted.show_loss(git, "b", "unstage")
    run_git(root, "rm", "--quiet", "--cached", "a")
    before = run_git(root, "ls-files", "--stage")
    with pytest.raises(ApiError) as refused:
        uncommitted.carry_out(git, "b", "unstage", shown["version"])
    assert (refused.value.code, run_git(root, "ls-files", "--stage")) == ("file_changed", before)


@pytest.mark.parametrize("path", ["folder", "folder/x"])
def test_unstaging_never_removes_another_file_from_the_index(root: Path, git: WorkspaceGit, path: str) -> None:
    (root / "folder").mkdir()
    commit(root, "folder/x", "x\n")
    (root / "folder/x").unlink()
    (root / "folder").rmdir()
    (root / "folder").write_text("staged\n")
    run_git(root, "add", "--all")
    (root / "folder").write_text("later\n")
    before = run_git(root, "ls-files", "--stage")
    with pytest.raises(ApiError, match="directory") as refused:
        undo(git, path, "unstage")
    assert (refused.value.code, run_git(root, "ls-files", "--stage")) == ("conflict", before)


def test_unstaging_a_rename_never_removes_another_file_from_the_index(root: Path, git: WorkspaceGit) -> None:
    run_git(root, "mv", "a", "b")
    (root / "a").mkdir()
    (root / "a/other").write_text("staged\n")
    run_git(root, "add", "--all")
    before = run_git(root, "ls-files", "--stage")
    with pytest.raises(ApiError, match="directory"):
        undo(git, "b", "unstage")
    assert run_git(root, "ls-files", "--stage") == before
    run_git(root, "reset", "--quiet", "--hard")
    run_git(root, "mv", "a", "b")
    (root / "a").mkdir()
    run_git(root, "mv", "b", "a/b")
    undo(git, "a/b", "unstage")
    assert status(git) == {"unstaged": [{"path": "a", "change": "deleted"}], "untracked": ["a/b"]}


def test_conflict_over_a_file_that_the_branch_deleted_says_that_it_is_deleted(root: Path, git: WorkspaceGit) -> None:
    run_git(root, "switch", "--quiet", "-c", "theirs")
    commit(root, "a", "theirs\n")
    run_git(root, "switch", "--quiet", "-")
    run_git(root, "rm", "--quiet", "a")
    run_git(root, "commit", "--quiet", "--message", "Delete")
    with pytest.raises(subprocess.CalledProcessError):
        run_git(root, "merge", "theirs")
    shown = undo(git, "a", "discard")
    assert "so it is deleted" in shown["sentence"]
    assert "+theirs" in shown["lines"]
    assert (status(git), (root / "a").exists()) == ({}, False)


def test_huge_file_is_left_to_the_terminal(root: Path, git: WorkspaceGit) -> None:
    with (root / "new").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ApiError, match="larger than 1 GiB"):
        uncommitted.show_loss(git, "new", "discard")


HOSTILE = [":(glob)*", "*", "--", "-f", "new\nline", "tab\tx", '"q"', "[a]", ":!b", "HEAD", "b c"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_name_is_that_one_file(root: Path, git: WorkspaceGit, name: str) -> None:
    (root / name).write_text("1\n")
    run_git(root, "add", "--all")
    run_git(root, "commit", "--quiet", "--message", "Add it")
    for path in ("a", name):
        (root / path).write_text("staged\n")
    run_git(root, "add", "--all")
    for path in ("a", name):
        (root / path).write_text("later\n")
    (root / "other").write_text("stays\n")
    undo(git, name, "discard")
    undo(git, name, "unstage")
    undo(git, name, "discard")
    run_git(root, "--literal-pathspecs", "rm", "--quiet", "--cached", "--", name)
    undo(git, name, "unstage")
    assert status(git) == {
        "staged": [{"path": "a", "change": "modified"}],
        "unstaged": [{"path": "a", "change": "modified"}],
        "untracked": ["other"],
    }
    assert (root / name).read_text() == "1\n"


class Killed(BaseException):
    """agentctl ends here: nothing is put back."""


def kill_at(monkeypatch: pytest.MonkeyPatch, git: WorkspaceGit, path: str, moment: str) -> None:
    """Discard a file with an agentctl that is killed before this call of the system."""
    shown = uncommitted.show_loss(git, path, "discard")

    def die(*arguments: Any, **options: Any) -> None:
        raise Killed

    with monkeypatch.context() as killed:
        killed.setattr(discarded_files, "_put_back", die)
        killed.setattr(os, moment, die)
        with pytest.raises(Killed):
            uncommitted.carry_out(git, path, "discard", shown["version"])


def test_discard_of_a_killed_agentctl_is_finished_or_undone(
    root: Path, git: WorkspaceGit, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "folder").mkdir()
    (root / "folder/grüße\nx").write_text("new\n")
    kill_at(monkeypatch, git, "folder/grüße\nx", "unlink")
    assert not (root / "folder/grüße\nx").exists()
    [(path, sentence)] = uncommitted.finish_discards(git)
    assert (path, "nothing of it was discarded" in sentence) == ("folder/grüße\nx", True)
    assert (root / "folder/grüße\nx").read_text() == "new\n"

    (root / "a").write_text("seen\n")
    kill_at(monkeypatch, git, "a", "unlink")
    assert (root / "a").read_text() == "1\n2\n3\n"
    [(path, sentence)] = uncommitted.finish_discards(git)
    assert (path, "is finished now" in sentence) == ("a", True)
    assert status(git) == {"untracked": ["folder/grüße\nx"]}
    assert uncommitted.finish_discards(git) == []


async def test_page_of_changes_finishes_an_interrupted_discard_and_warns(
    running: Running, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "new").write_text("new\n")
    kill_at(monkeypatch, running.sidecar.workspace.git, "new", "unlink")
    assert (await running.get("/git/status"))["untracked"] == ["new"]
    line = await running.line("log")
    assert line["text"].startswith("new: Discarding its changes was interrupted")


def test_interrupted_discard_is_found_where_hidden_files_are_ignored(
    root: Path, git: WorkspaceGit, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / ".gitignore").write_text(".*\n")
    (root / "new").write_text("new\n")
    kill_at(monkeypatch, git, "new", "unlink")
    assert [path for path, _ in uncommitted.finish_discards(git)] == ["new"]
    assert (root / "new").read_text() == "new\n"


def test_interrupted_discard_of_other_content_is_kept_and_one_in_progress_left_alone(
    root: Path, git: WorkspaceGit, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_text("seen\n")
    kill_at(monkeypatch, git, "a", "unlink")
    [aside] = root.glob(".*.discarded")
    (aside / "a").write_text("never shown\n")
    [(_, sentence)] = uncommitted.finish_discards(git)
    [kept] = root.glob(".*.kept")
    assert f"What it was is in {kept.name}/a." in sentence
    assert (kept / "a").read_text() == "never shown\n"
    assert uncommitted.finish_discards(git) == [], "it is said once"
    shutil.rmtree(kept)

    (root / "a").write_text("seen\n")
    shown = uncommitted.show_loss(git, "a", "discard")
    with monkeypatch.context() as watched:
        watched.setattr(os, "unlink", lambda *given, **options: told.append(uncommitted.finish_discards(git)))
        told: list[Any] = []
        uncommitted.carry_out(git, "a", "discard", shown["version"])
    assert told == [[]]
    uncommitted.finish_discards(git)
    (root / ".0123.discarded").mkdir()
    (root / ".0123.discarded/x").write_text("a name like that\n")
    assert uncommitted.finish_discards(git) == []
    shutil.rmtree(root / ".0123.discarded")
