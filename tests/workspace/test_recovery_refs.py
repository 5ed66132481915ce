"""Saved history, diffs and files of a session are readable without its workspace, and marked as saved."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from executors_app.machine.git.worktrees import Worktree
from executors_app.repositories import recovery_refs
from executors_app.repositories.archive import Archive
from executors_app.repositories.object_store import ObjectStore
from executors_app.repositories.recovery_refs import SavedWork
from executors_app.repositories.team import TeamRepository
from executors_app.wire.errors import NotKept
from tests.api.world import client_of, make_world
from tests.executors.repositories import commit, run_git
from tests.workspace.trees import SESSION, make_six, snapshot_tree


@pytest.fixture
def kept(repository: Path, worktree: Worktree) -> SavedWork:
    """Return six changes, saved before their worktree was removed."""
    make_six(worktree.path)
    (worktree.path / "folder").mkdir()
    (worktree.path / "folder" / "picture").write_bytes(b"\0\xff")
    (worktree.path / "link").symlink_to("README")
    snapshot_tree(worktree.path)
    run_git(repository, "worktree", "remove", "--force", str(worktree.path))
    return recovery_refs.find_saved_work(repository, SESSION, worktree.branch)


def test_directories_and_files_are_read_without_a_worktree(kept: SavedWork) -> None:
    listing = recovery_refs.list_saved_directory(kept, "")
    types = {entry["name"]: entry["type"] for entry in listing["entries"]}
    assert types["folder"] == "directory"
    assert types["link"] == "symlink"
    assert types["with space\nand line"] == "file"
    assert listing["kept"]["commit"] == kept.files
    assert [entry["size"] for entry in recovery_refs.list_saved_directory(kept, "folder")["entries"]] == [2]
    assert recovery_refs.read_saved_content(kept, "one")["content"] == "after\n"
    picture = recovery_refs.read_saved_content(kept, "folder/picture")
    assert (picture["binary"], picture["content"], picture["size"]) == (True, "AP8=", 2)


def test_uncommitted_changes_are_separated_from_committed_ones(kept: SavedWork) -> None:
    status = recovery_refs.saved_status(kept)
    assert [one["path"] for one in status["staged"]] == ["staged"]
    assert sorted(one["path"] for one in status["unstaged"]) == ["one", "three", "two"]
    assert sorted(status["untracked"]) == ["folder/picture", "link", "untracked", "with space\nand line"]
    assert not status["clean"]
    whole, one = recovery_refs.saved_diff(kept), recovery_refs.saved_diff(kept, "one")
    assert "+staged" in whole["staged"]
    assert "-before\n+after\n" in one["unstaged"]
    assert "untracked" not in one["unstaged"]
    assert [entry["subject"] for entry in recovery_refs.saved_log(kept, 2, 1)["commits"]] == ["Write two", "Write one"]
    assert recovery_refs.saved_log(kept, 2, 1)["more"]


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "no-such", "a\0b", "README/x", "folder/../../x", "--output=x", ":one", "HEAD:one"]
)
def test_unknown_path_is_not_found(kept: SavedWork, path: str) -> None:
    with pytest.raises(NotKept):
        recovery_refs.read_saved_content(kept, path)
    with pytest.raises(NotKept):
        recovery_refs.list_saved_directory(kept, path)


def test_directory_is_not_a_file(kept: SavedWork) -> None:
    with pytest.raises(NotKept, match="not a file"):
        recovery_refs.read_saved_content(kept, "folder")


def test_long_file_is_truncated_between_characters(repository: Path, worktree: Worktree) -> None:
    (worktree.path / "long").write_text("x" + "ü" * (1 << 20))
    snapshot_tree(worktree.path)
    found = recovery_refs.read_saved_content(
        recovery_refs.find_saved_work(repository, SESSION, worktree.branch), "long"
    )
    assert (found["truncated"], found["hash"], found["size"]) == (True, None, 1 + (2 << 20))
    assert found["content"] == "x" + "ü" * ((1 << 19) - 1)


def test_later_commit_takes_precedence_over_the_snapshot(repository: Path, worktree: Worktree) -> None:
    (worktree.path / "README").write_text("unfinished\n")
    snapshot_tree(worktree.path)
    head = commit(worktree.path, "README", "finished\n")
    found = recovery_refs.find_saved_work(repository, SESSION, worktree.branch)
    assert (found.files, found.head) == (head, head)
    assert recovery_refs.saved_status(found)["clean"]
    assert recovery_refs.read_saved_content(found, "README")["content"] == "finished\n"


def test_archive_is_read_before_the_repository(
    repository: Path, worktree: Worktree, tmp_path: Path, settings: Any
) -> None:
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    (worktree.path / "new").write_text("kept\n")
    snapshot_tree(worktree.path)
    store = ObjectStore.of(tmp_path / "data", TeamRepository.open(repository))
    store.update()
    Archive.of(tmp_path / "data", SESSION, store).adopt(worktree.branch)
    shutil.rmtree(repository)
    found = recovery_refs.find_saved_work(repository, SESSION, worktree.branch)
    assert recovery_refs.saved_status(found)["untracked"] == ["new"]
    assert recovery_refs.read_saved_content(found, "new")["content"] == "kept\n"


@pytest.mark.parametrize("index", ["--output=canary", "HEAD~0", "0123456789" * 4])
def test_forged_index_of_a_snapshot_is_ignored(index: str, repository: Path, worktree: Worktree) -> None:
    head = run_git(worktree.path, "rev-parse", "HEAD")
    message = f"x\n\nKandev-Session: {SESSION}\nKandev-Head: {head}\nKandev-Index: {index}\n"
    made = run_git(worktree.path, "commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", message)
    run_git(repository, "update-ref", f"refs/kandev/recovery/{SESSION}", made)
    found = recovery_refs.find_saved_work(repository, SESSION, worktree.branch)
    assert (found.files, found.index) == (head, head)
    assert recovery_refs.saved_status(found)["clean"]


@pytest.mark.parametrize("gone", ["branch", "repository"])
def test_missing_saved_work_is_reported(repository: Path, worktree: Worktree, gone: str) -> None:
    if gone == "branch":
        run_git(repository, "worktree", "remove", "--force", str(worktree.path))
        run_git(repository, "branch", "-D", worktree.branch)
    else:
        shutil.rmtree(repository)
    with pytest.raises(NotKept):
        recovery_refs.find_saved_work(repository, SESSION, worktree.branch)


@pytest.mark.django_db
def test_api_shows_saved_work_of_a_stopped_session(repository: Path) -> None:
    world = make_world()
    world.repository.path = str(repository)
    world.repository.save()
    world.session.worktree_branch = "kandev/one"
    world.session.save(update_fields=["worktree_branch"])
    run_git(repository, "branch", "kandev/one")
    api = client_of(world.member)

    def get(tail: str, client: APIClient = api, **query: Any) -> Any:
        return client.get(world.url(tail), {"kept": "true", **query})

    assert api.get(world.url("git/status/")).status_code == 503
    assert get("git/status/").json()["clean"]
    assert get("git/diff/").json()["unstaged"] == ""
    assert get("git/log/").json()["commits"][0]["subject"] == "Write README"
    assert [entry["name"] for entry in get("files/").json()["entries"]] == ["README"]
    read = get("files/content/", path="README").json()
    assert (read["content"], read["kept"]["commit"]) == ("hello\n", run_git(repository, "rev-parse", "HEAD"))
    missing = get("files/content/", path="no-such")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert get("git/status/", client_of(world.stranger)).status_code == 404
    run_git(repository, "branch", "-D", "kandev/one")
    assert get("git/status/").json()["code"] == "not_found"
