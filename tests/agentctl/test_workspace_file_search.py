"""The names of a workspace's files are searched, without ignored and deleted ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors_app.agentctl.workspace import file_search
from executors_app.agentctl.workspace.file_search import FileSearch
from executors_app.machine.git.workspace_git import GitError, WorkspaceGit
from tests.agentctl.running import Running
from tests.executors.repositories import make_repository, run_git


@pytest.fixture
def search(tmp_path: Path) -> FileSearch:
    root = make_repository(tmp_path / "repository")
    for path in ("src/mail/module_03.py", "new/module_04.py", "ignored/module_05.py", "gone_module.py"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("x")
    (root / ".gitignore").write_text("ignored/\n")
    run_git(root, "add", "src", "gone_module.py")
    (root / "gone_module.py").unlink()
    return FileSearch(WorkspaceGit(root, {}))


def paths(search: FileSearch, query: str) -> list[str]:
    return [entry["path"] for entry in search.search(query)["entries"]]


def test_tracked_and_new_files_are_found_but_no_ignored_or_deleted_ones(search: FileSearch) -> None:
    assert paths(search, "module") == ["new/module_04.py", "src/mail/module_03.py"]
    assert paths(search, "ignored") == []


def test_listing_is_searched_again_for_a_while(search: FileSearch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert paths(search, "later") == []
    (search._git.root / "later").write_text("x")
    monkeypatch.setattr(file_search, "_FRESH", float("inf"))
    assert paths(search, "later") == []
    monkeypatch.setattr(file_search, "_FRESH", -1.0)
    assert paths(search, "later") == ["later"]


def test_directory_that_became_a_link_reveals_nothing_outside(search: FileSearch, tmp_path: Path) -> None:
    assert paths(search, "module_03") == ["src/mail/module_03.py"]
    root, outside = search._git.root, tmp_path / "outside"
    outside.mkdir()
    (outside / "module_03.py").write_text("secret")
    (root / "src/mail/module_03.py").unlink()
    (root / "src/mail").rmdir()
    (root / "src/mail").symlink_to(outside)
    assert paths(search, "module_03") == []


def test_workspace_without_a_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GitError, match="not a git repository"):
        FileSearch(WorkspaceGit(tmp_path, {})).search("x")


async def test_endpoint_answers_or_says_what_is_missing(running: Running) -> None:
    async with running.http.get(f"{running.url}/files/search?query=x", headers=running.headers) as response:
        assert (response.status, (await response.json())["code"]) == (409, "git_failed")
    make_repository(running.workspace / "inner")
    (running.workspace / "inner").joinpath(".git").rename(running.workspace / ".git")
    (running.workspace / "module_03.py").write_text("x")
    answer = await running.get("/files/search", query="mod3")
    assert answer == {"query": "mod3", "entries": [{"path": "module_03.py", "type": "file"}], "truncated": False}
