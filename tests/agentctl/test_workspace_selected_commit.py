"""Selected changes are committed exactly as they were shown, whatever happens meanwhile, and nothing else changes."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.workspace import selected_commit
from executors_app.agentctl.workspace.changes import git_status
from executors_app.agentctl.workspace.selected_commit import Selected, commit_selected, list_selectable
from executors_app.machine.git.workspace_git import WorkspaceGit
from executors_app.wire.protocol import ApiError
from tests.executors.repositories import commit, make_repository, run_git

ADA = ("Ada", "ada@localhost")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository with the files ``a``, ``b`` and ``c``."""
    made = make_repository(tmp_path / "repository")
    for name in "abc":
        (made / name).write_text(f"{name}\n1\n2\n3\n")
    run_git(made, "add", "--all")
    run_git(made, "commit", "--quiet", "-m", "Base")
    return made


@pytest.fixture
def git(root: Path) -> Any:
    made = WorkspaceGit(root, {})
    yield made
    made.close()


def selected(git: WorkspaceGit, *wanted: str) -> list[Selected]:
    """Return these rows of the list, each named as ``staged:a`` or ``file:a``; all without names."""
    rows = list_selectable(git)["files"]
    chosen = [row for row in rows if not wanted or f"{row['content']}:{row['path']}" in wanted]
    assert len(chosen) >= len(wanted)
    return [Selected(row["path"], row["content"], row["version"]) for row in chosen]


def committed(root: Path) -> dict[str, str]:
    """Return what the last commit has changed, by path."""
    lines = run_git(root, "show", "--format=", "--name-status", "--no-renames", "HEAD").splitlines()
    return {path: change for change, _, path in (line.partition("\t") for line in lines)}


def remaining(git: WorkspaceGit) -> dict[str, Any]:
    found = git_status(git)
    return {key: found[key] for key in ("staged", "unstaged", "untracked", "conflicted") if found[key]}


def everything(root: Path) -> tuple[str, str, dict[str, str]]:
    """Return the last commit, the index, and all files."""
    files = {str(path): path.read_text() for path in root.iterdir() if path.is_file()}
    return run_git(root, "rev-parse", "HEAD"), run_git(root, "ls-files", "--stage"), files


def test_each_kind_of_change_is_committed_and_the_rest_stays(root: Path, git: WorkspaceGit) -> None:
    (root / "a").write_text("staged\n")
    run_git(root, "add", "a")
    (root / "a").write_text("staged\nlater\n")
    (root / "b").unlink()
    run_git(root, "mv", "c", "moved")
    (root / "new one").write_text("new\n")
    (root / "link").symlink_to("/etc/passwd")
    (root / "other").write_text("stays staged\n")
    run_git(root, "add", "other")
    files = list_selectable(git)["files"]
    assert [(row["content"], row["path"], row["old_path"], row["change"]) for row in files] == [
        ("staged", "a", "", "modified"),
        ("staged", "moved", "c", "renamed"),
        ("staged", "other", "", "added"),
        ("file", "a", "", "modified"),
        ("file", "b", "", "deleted"),
        ("file", "link", "", "added"),
        ("file", "new one", "", "added"),
    ]

    made = commit_selected(git, "\nFirst \n\n\n\nWhy  \n", ADA, selected(git, "staged:a", "staged:moved", "file:b"))
    assert made["subject"] == "First"
    assert made["commit"] == run_git(root, "rev-parse", "HEAD")
    assert committed(root) == {"a": "M", "b": "D", "c": "D", "moved": "A"}
    assert run_git(root, "show", "HEAD:a") == "staged"
    people = "Ada|ada@localhost|Ada|ada@localhost"
    assert run_git(root, "log", "-1", "--format=%B|%an|%ae|%cn|%ce") == f"First\n\nWhy\n|{people}"
    assert "commit: " in run_git(root, "reflog", "-1")
    assert remaining(git) == {
        "staged": [{"path": "other", "change": "added"}],
        "unstaged": [{"path": "a", "change": "modified"}],
        "untracked": ["link", "new one"],
    }

    commit_selected(git, "Second", ADA, selected(git, "file:a", "file:link", "file:new one"))
    assert committed(root) == {"a": "M", "link": "A", "new one": "A"}
    assert run_git(root, "ls-tree", "HEAD", "link").startswith("120000")
    assert remaining(git) == {"staged": [{"path": "other", "change": "added"}]}


def test_file_counts_more_than_what_is_staged_of_it(root: Path, git: WorkspaceGit) -> None:
    (root / "a").write_text("staged\n")
    run_git(root, "add", "a")
    (root / "a").write_text("later\n")
    run_git(root, "mv", "b", "moved")
    (root / "moved").write_text("b\n1\n2\nmore\n")
    commit_selected(git, "Both", ADA, selected(git, "staged:a", "file:a", "file:moved"))
    assert run_git(root, "show", "HEAD:a") == "later"
    assert committed(root) == {"a": "M", "b": "D", "moved": "A"}
    assert remaining(git) == {}


def test_file_that_is_that_of_the_last_commit_again_is_no_longer_staged(root: Path, git: WorkspaceGit) -> None:
    (root / "a").write_text("staged\n")
    run_git(root, "add", "a")
    (root / "a").write_text("a\n1\n2\n3\n")
    (root / "b").write_text("other\n")
    with pytest.raises(ApiError, match="nothing to commit"):
        commit_selected(git, "Nothing", ADA, selected(git, "file:a"))
    commit_selected(git, "Other", ADA, selected(git, "file:a", "file:b"))
    assert committed(root) == {"b": "M"}
    assert remaining(git) == {}


def test_first_commit_of_a_repository(tmp_path: Path) -> None:
    root = tmp_path / "empty"
    run_git(tmp_path, "init", "--quiet", str(root))
    (root / "a").write_text("1\n")
    git = WorkspaceGit(root, {})
    commit_selected(git, "First", ADA, selected(git))
    assert remaining(git) == {}
    assert run_git(root, "log", "--format=%s") == "First"
    git.close()


def edit(root: Path) -> None:
    (root / "a").write_text("written meanwhile\n")


def stage(root: Path) -> None:
    (root / "a").write_text("other\n")
    run_git(root, "add", "a")
    (root / "a").write_text("seen\n")


def commit_it(root: Path) -> None:
    run_git(root, "commit", "--quiet", "-m", "Meanwhile", "a")


def make_executable(root: Path) -> None:
    (root / "a").chmod(0o755)


@pytest.mark.parametrize("change", [edit, stage, commit_it, make_executable])
def test_what_has_changed_meanwhile_is_named_and_nothing_is_committed(
    root: Path, git: WorkspaceGit, change: Callable[[Path], None]
) -> None:
    (root / "a").write_text("seen\n")
    (root / "b").write_text("seen\n")
    chosen = selected(git)
    change(root)
    before = everything(root)
    with pytest.raises(ApiError, match=r"nothing was committed: a \((?:changed|no longer changed)\)$") as refused:
        commit_selected(git, "Seen", ADA, chosen)
    assert refused.value.code == "file_changed"
    assert everything(root) == before


def test_branch_that_was_checked_out_meanwhile_gets_no_commit(
    root: Path, git: WorkspaceGit, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_text("seen\n")
    chosen, run = selected(git), git.run

    def switch(*arguments: str, **options: Any) -> Any:
        if "commit-tree" in arguments:
            run_git(root, "switch", "--quiet", "-c", "other")
        return run(*arguments, **options)

    monkeypatch.setattr(git, "run", switch)
    with pytest.raises(ApiError, match="another branch is checked out"):
        commit_selected(git, "../../Seen", ADA, chosen)
    monkeypatch.setattr(git, "run", run)
    assert run_git(root, "log", "--all", "-1", "--format=%s") == "Base"
    run_git(root, "switch", "--quiet", "--detach")
    assert commit_selected(git, "../../Seen", ADA, selected(git))["branch"] is None
    assert run_git(root, "log", "-1", "--format=%s") == "../../Seen"


@pytest.mark.parametrize("moment", ["update-index", "update-ref"])
def test_change_in_the_last_moment_loses_nothing(
    root: Path, git: WorkspaceGit, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_text("seen\n")
    (root / "b").write_text("staged\n")
    run_git(root, "add", "b")
    chosen = selected(git, "file:a")
    run = git.run

    def interfere(*arguments: str, **options: Any) -> Any:
        if arguments[0] == moment and options.get("all_settings"):
            monkeypatch.setattr(git, "run", run)
            run_git(root, "commit", "--quiet", "-m", "Meanwhile")
        return run(*arguments, **options)

    monkeypatch.setattr(git, "run", interfere)
    with pytest.raises(ApiError, match="the branch has other commits") as refused:
        commit_selected(git, "Seen", ADA, chosen)
    assert refused.value.code == "file_changed"
    assert run_git(root, "log", "-2", "--format=%s") == "Meanwhile\nBase"
    assert (root / "a").read_text() == "seen\n"
    expected = {"unstaged": [{"path": "a", "change": "modified"}]}
    if moment == "update-ref":  # it has committed the index
        expected = {}
    assert remaining(git) == expected


def test_busy_index_is_said_and_nothing_is_lost(root: Path, git: WorkspaceGit) -> None:
    (root / "a").write_text("seen\n")
    chosen = selected(git)
    lock = root / ".git/index.lock"
    lock.touch()
    before = everything(root)
    with pytest.raises(ApiError, match="Another git is using the repository"):
        commit_selected(git, "Seen", ADA, chosen)
    assert everything(root) == before
    assert remaining(git) == {"unstaged": [{"path": "a", "change": "modified"}]}
    lock.unlink()
    commit_selected(git, "Seen", ADA, chosen)
    assert remaining(git) == {}


class Killed(BaseException):
    """The process ends here."""


def dying(run: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Return what runs git so many times, and then ends the process."""
    steps = itertools.count()

    def die(*arguments: str, **options: Any) -> Any:
        if next(steps) == number:
            raise Killed
        return run(*arguments, **options)

    return die


def test_kill_at_each_step_leaves_no_commit_or_the_commit(
    root: Path, git: WorkspaceGit, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, run = run_git(root, "rev-parse", "HEAD"), git.run
    for number in range(100):
        run_git(root, "reset", "--quiet", "--hard", base)
        (root / "b").write_text("stays staged\n")
        run_git(root, "add", "b")
        (root / "a").write_text("seen\n")
        (root / "c").unlink()
        chosen = selected(git, "file:a", "file:c")
        monkeypatch.setattr(git, "run", dying(run, number))
        try:
            commit_selected(git, "Seen", ADA, chosen)
        except Killed:
            killed = True
        else:
            killed = False
        monkeypatch.setattr(git, "run", run)
        assert (root / "a").read_text() == "seen\n"
        status = remaining(git)
        assert {"path": "b", "change": "modified"} in status.pop("staged")
        if run_git(root, "rev-parse", "HEAD") != base:
            assert committed(root) == {"a": "M", "c": "D"}
            assert status == {}
        else:
            run_git(root, "add", "--all")
            assert run_git(root, "diff", "--cached", "--name-status") == "M\ta\nM\tb\nD\tc"
        if not killed:
            return
    raise AssertionError("a commit has fewer steps")


def write_programs(root: Path, ran: Path) -> None:
    """Let every hook and setting that starts a program write a file."""
    program = root.parent / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    program.chmod(0o755)
    names = (
        "pre-commit",
        "commit-msg",
        "prepare-commit-msg",
        "post-commit",
        "post-index-change",
        "reference-transaction",
    )
    for name in names:
        hook = root / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(program.read_text())
        hook.chmod(0o755)
    for key in ("core.editor", "gpg.program", "gpg.ssh.program", "diff.external", "core.fsmonitor", "core.pager"):
        run_git(root, "config", key, str(program))
    for key in ("commit.gpgSign", "tag.gpgSign", "commit.verbose"):
        run_git(root, "config", key, "true")
    run_git(root, "config", "commit.template", str(program))
    run_git(root, "config", "i18n.commitEncoding", "UTF-16")
    run_git(root, "config", "core.hooksPath", str(root / ".git/hooks"))
    run_git(root, "config", "diff.mine.command", str(program))
    run_git(root, "config", "diff.mine.textconv", str(program))
    (root / ".git/info").mkdir(exist_ok=True)
    (root / ".git/info/attributes").write_text("* diff=mine\n")


def test_nothing_that_the_repository_names_runs(root: Path, git: WorkspaceGit, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    write_programs(root, ran)
    (root / "a").write_text("seen\n")
    commit_selected(git, "Größe", ADA, selected(git))
    assert not ran.exists()
    found = subprocess.run(["git", "cat-file", "commit", "HEAD"], cwd=root, capture_output=True, check=True)
    assert found.stdout.decode().endswith("\n\nGröße\n")
    assert b"gpgsig" not in found.stdout


def test_filter_decides_what_is_committed_as_it_decides_what_is_shown(root: Path, git: WorkspaceGit) -> None:
    run_git(root, "config", "filter.upper.clean", "tr a-z A-Z")
    run_git(root, "config", "core.autocrlf", "input")
    (root / ".gitattributes").write_text("a filter=upper\nb filter=failing\n")
    (root / "a").write_text("seen\r\n")
    run_git(root, "config", "filter.failing.clean", "false")
    run_git(root, "config", "filter.failing.required", "true")
    (root / "b").write_text("other\n")
    rows = {row["path"]: row for row in list_selectable(git)["files"]}
    assert "failing" in rows["b"]["problem"]
    commit_selected(git, "Seen", ADA, selected(git, "file:a", "file:.gitattributes"))
    assert git.run("cat-file", "blob", "HEAD:a").data == b"SEEN\n"
    with pytest.raises(ApiError, match=r"b cannot be committed: .*failing"):
        commit_selected(git, "Not this", ADA, selected(git, "file:b"))


def test_names_and_files_of_any_kind(root: Path, git: WorkspaceGit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selected_commit, "_HASHED_FILE", 100)
    names = [b"*", b":(top)a", b"-a", b"two\nlines", b"tab\there", b"\xff", "grüße".encode()]
    for name in names:
        (root / os.fsdecode(name)).write_text("new\n")
    (root / "large").write_text("x" * 1000)
    chosen = selected(git)
    (root / "large").write_text("y" * 1000)
    with pytest.raises(ApiError, match=r"large \(changed\)"):
        commit_selected(git, "All", ADA, chosen)
    commit_selected(git, "All", ADA, selected(git))
    found = run_git(root, "-c", "core.quotePath=false", "ls-tree", "-z", "--name-only", "HEAD").split("\0")
    assert {os.fsencode(name) for name in found} >= {*names, b"large"}
    assert remaining(git) == {}


def test_list_stores_nothing_in_the_repository(root: Path, git: WorkspaceGit) -> None:
    (root / "new").write_text("never seen before\n")
    before = sorted((root / ".git").rglob("*"))
    list_selectable(git)
    assert sorted((root / ".git").rglob("*")) == before


def test_directory_that_became_a_file_is_selected_as_a_whole(root: Path, git: WorkspaceGit) -> None:
    (root / "folder").mkdir()
    commit(root, "folder/x", "1\n")
    run_git(root, "rm", "--quiet", "-r", "folder")
    (root / "folder").write_text("a file\n")
    with pytest.raises(ApiError, match="select these files, too: folder/x"):
        commit_selected(git, "Half", ADA, selected(git, "file:folder"))
    commit_selected(git, "Whole", ADA, selected(git))
    assert committed(root) == {"folder": "A", "folder/x": "D"}
    (root / "folder").unlink()
    (root / "folder").mkdir()
    (root / "folder/y").write_text("staged\n")
    run_git(root, "add", "--all")
    for path in ((root / "folder/y"), (root / "folder")):
        path.unlink() if path.is_file() else path.rmdir()
    (root / "folder").write_text("again another file\n")
    with pytest.raises(ApiError, match="select these files, too: folder/y"):
        commit_selected(git, "Staged file in the way", ADA, selected(git, "file:folder"))


def test_repositories_inside_the_workspace(root: Path, git: WorkspaceGit) -> None:
    run_git(root, "init", "--quiet", "empty")
    inner = make_repository(root / "inner")
    commit(inner, "x", "1\n")
    rows = {row["path"]: row for row in list_selectable(git)["files"]}
    assert "no commit" in rows["empty/"]["problem"]
    commit_selected(git, "A repository", ADA, selected(git, "file:inner/"))
    assert run_git(root, "ls-tree", "HEAD", "inner").split()[:3] == [
        "160000",
        "commit",
        run_git(inner, "rev-parse", "HEAD"),
    ]


def test_unfinished_merge_is_refused(root: Path, git: WorkspaceGit) -> None:
    run_git(root, "switch", "--quiet", "-c", "theirs")
    commit(root, "a", "theirs\n")
    run_git(root, "switch", "--quiet", "-")
    commit(root, "a", "ours\n")
    with pytest.raises(subprocess.CalledProcessError):
        run_git(root, "merge", "--quiet", "theirs")
    (root / "b").write_text("other\n")
    found = list_selectable(git)
    assert (found["conflicts"], found["operation"]) == (1, "merge")
    with pytest.raises(ApiError, match="resolve its conflicts"):
        commit_selected(git, "Half", ADA, selected(git, "file:b"))
    run_git(root, "add", "a")
    with pytest.raises(ApiError, match="in the middle of a merge"):
        commit_selected(git, "Half", ADA, selected(git, "file:b"))


@pytest.mark.parametrize(
    ("message", "files", "wrong"),
    [
        (" \n", None, "message is empty"),
        ("x", [], "between 1 and"),
        ("x", [Selected("*", "file", "0" * 40)], "no longer changed"),
        ("x", [Selected("a", "file", "")], r"a \(changed\)"),
        ("x", [Selected("../a", "staged", "0" * 40)], "no longer staged"),
    ],
)
def test_impossible_requests_are_refused(
    root: Path, git: WorkspaceGit, message: str, files: Sequence[Selected] | None, wrong: str
) -> None:
    (root / "a").write_text("seen\n")
    before = everything(root)
    with pytest.raises(ApiError, match=wrong):
        commit_selected(git, message, ADA, selected(git) if files is None else files)
    assert everything(root) == before
