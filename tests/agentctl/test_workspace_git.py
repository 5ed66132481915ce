"""git through agentctl without an agent: status, diffs, history and commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.workspace import changes
from executors_app.machine.git.workspace_git import GitError
from tests.agentctl.running import Running
from tests.executors.repositories import commit, run_git


async def test_status_separates_staged_unstaged_and_untracked_changes(running: Running, repository: Path) -> None:
    for name in ("both", "old name", "gone"):
        commit(repository, name, f"{name}\n" * 9)
    run_git(repository, "mv", "old name", "new name")
    for text in ("1", "2"):
        (repository / "both").write_text(text)
        if text == "1":
            run_git(repository, "add", "both")
    (repository / "gone").unlink()
    (repository / "folder").mkdir()
    (repository / "folder" / "grüße").write_text("x")

    answer = await running.get("/git/status")

    assert answer == {
        "branch": run_git(repository, "branch", "--show-current"),
        "head": run_git(repository, "rev-parse", "HEAD"),
        "clean": False,
        "staged": [
            {"path": "both", "change": "modified"},
            {"path": "new name", "change": "renamed", "from": "old name"},
        ],
        "unstaged": [{"path": "both", "change": "modified"}, {"path": "gone", "change": "deleted"}],
        "untracked": ["folder/grüße"],
        "conflicted": [],
        "submodules": [],
        "truncated": False,
    }
    assert (await running.get("/status"))["workspace"]["dirty"] is True


async def test_empty_repository_and_detached_head_have_a_status(running: Running) -> None:
    run_git(running.workspace, "init", "--quiet")
    fresh = await running.get("/git/status")
    assert (fresh["head"], fresh["clean"]) == (None, True)
    assert (await running.get("/git/log"))["commits"] == []
    head = commit(running.workspace, "README", "x")
    run_git(running.workspace, "checkout", "--quiet", "--detach")
    detached = await running.get("/git/status")
    assert (detached["head"], detached["branch"]) == (head, None)


async def test_conflicts_are_named_and_not_committed(running: Running, repository: Path) -> None:
    run_git(repository, "switch", "--quiet", "-c", "theirs")
    commit(repository, "README", "theirs\n")
    run_git(repository, "switch", "--quiet", "-")
    commit(repository, "README", "ours\n")
    with pytest.raises(Exception, match="merge"):
        run_git(repository, "merge", "theirs")
    assert (await running.get("/git/status"))["conflicted"] == ["README"]
    status, answer = await running.post("/git/commit", message="Merge")
    assert (status, answer["code"]) == (409, "conflict")


async def test_diff_shows_staged_and_unstaged_changes_or_one_file(running: Running, repository: Path) -> None:
    commit(repository, "other", "1\n")
    (repository / "README").write_text("staged\n")
    run_git(repository, "add", "README")
    (repository / "README").write_text("unstaged\n")
    (repository / "other").write_text("2\n")

    whole = await running.get("/git/diff")
    one = await running.get("/git/diff", path="README")

    assert "-hello\n+staged\n" in whole["staged"]
    assert "-staged\n+unstaged\n" in whole["unstaged"]
    assert "diff --git a/other b/other" in whole["unstaged"]
    assert "other" not in one["unstaged"]
    assert not whole["truncated"]


async def test_long_diff_is_truncated(running: Running, repository: Path) -> None:
    (repository / "README").write_text("line\n" * (1 << 19))
    answer = await running.get("/git/diff")
    assert (len(answer["unstaged"]), answer["truncated"]) == (1 << 20, True)


async def test_history_is_paginated(running: Running, repository: Path) -> None:
    ids = [run_git(repository, "rev-parse", "HEAD")]
    ids += [commit(repository, f"file{number}", "x") for number in range(4)]

    first = await running.get("/git/log", limit="2")
    rest = await running.get("/git/log", limit="10", skip="2")

    assert [one["id"] for one in first["commits"] + rest["commits"]] == ids[::-1]
    assert (first["more"], rest["more"]) == (True, False)
    newest = first["commits"][0]
    assert (newest["subject"], newest["parents"], newest["author"]) == ("Write file3", [ids[-2]], "Test")
    assert (await running.get("/git/log", ref=ids[1]))["commits"][0]["id"] == ids[1]


async def test_everything_is_committed_under_the_given_author(running: Running, repository: Path) -> None:
    (repository / "README").write_text("changed\n")
    (repository / "new").write_text("x")
    author = {"author_name": "Ada", "author_email": "ada@example.org"}

    status, answer = await running.post("/git/commit", message="# One\n\nand -all the rest\n", **author)

    assert status == 200
    assert answer["commit"] == run_git(repository, "rev-parse", "HEAD")
    assert (answer["subject"], answer["branch"]) == ("# One", run_git(repository, "branch", "--show-current"))
    log = run_git(repository, "log", "-1", "--format=%an %ae %cn%n%B")
    assert log == "Ada ada@example.org Ada\n# One\n\nand -all the rest"
    assert (await running.get("/git/status"))["clean"]
    assert (await running.get("/status"))["workspace"]["dirty"] is False


async def test_commit_of_some_paths_leaves_the_others(running: Running, repository: Path) -> None:
    for name in ("a", "b", "[c]*"):
        (repository / name).write_text("x")
    run_git(repository, "add", "b")
    await running.post("/git/commit", message="Some", paths=["a", "[c]*"])
    assert run_git(repository, "show", "--name-only", "--format=", "HEAD").split() == ["[c]*", "a"]
    assert run_git(repository, "status", "--porcelain") == "A  b"


async def test_author_defaults_to_the_git_user_or_kandev(running: Running, repository: Path) -> None:
    (repository / "a").write_text("x")
    await running.post("/git/commit", message="One")
    assert run_git(repository, "log", "-1", "--format=%an") == "Owner"
    run_git(repository, "config", "user.name", "")
    (repository / "b").write_text("x")
    await running.post("/git/commit", message="Two")
    assert run_git(repository, "log", "-1", "--format=%an %ae") == "Kandev kandev@localhost"


async def test_commit_succeeds_although_the_status_cannot_be_read_after_it(
    running: Running, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise GitError("git status did not finish within 30 s")

    for name in "ab":
        (repository / name).write_text("x")
    [first, _] = (await running.get("/git/selectable"))["files"]
    file = {name: first[name] for name in ("path", "content", "version")}
    monkeypatch.setattr(changes, "git_status", fail)
    for endpoint, body in (("selected", {"files": [file]}), ("", {})):
        status, answer = await running.post(f"/git/commit/{endpoint}".rstrip("/"), message="x", **body)
        assert (status, answer.get("commit")) == (200, run_git(repository, "rev-parse", "HEAD"))


async def test_empty_commit_is_refused(running: Running, repository: Path) -> None:
    status, answer = await running.post("/git/commit", message="Nothing")
    assert (status, answer["code"], answer["message"]) == (409, "conflict", "there is nothing to commit")


async def test_hooks_editors_and_external_programs_never_run(
    running: Running, repository: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\necho $0 $* >> {ran}\n")
    trap.chmod(0o755)
    for hook in ("pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "post-index-change"):
        (repository / ".git" / "hooks").mkdir(exist_ok=True)
        (repository / ".git" / "hooks" / hook).symlink_to(trap)
    for name in (
        *("core.fsmonitor", "core.editor", "core.pager", "diff.external", "gpg.program", "diff.x.textconv"),
        *("diff.x.command", "core.sshCommand", "sequence.editor", "alias.status", "pager.log", "pager.diff"),
    ):
        run_git(repository, "config", name, str(trap))
    for name in ("commit.gpgSign", "log.showSignature"):
        run_git(repository, "config", name, "true")
    (repository / ".gitattributes").write_text("* diff=x\n")
    (repository / "README").write_text("changed\n")

    await running.get("/git/status")
    await running.get("/git/diff")
    assert (await running.post("/git/commit", message="Quietly"))[0] == 200
    await running.get("/git/log")

    assert not ran.exists(), ran.read_text()
    run_git(repository, "-c", "core.hooksPath=.git/hooks", "status")
    assert ran.exists(), "the trap itself does not work"


async def test_repository_cannot_redirect_git_to_another_directory(running: Running, repository: Path) -> None:
    elsewhere = repository.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret").write_text("secret")
    run_git(repository, "config", "core.worktree", str(elsewhere))
    assert (await running.get("/git/status"))["untracked"] == []
    assert "secret" not in str(await running.get("/git/diff"))


async def test_missing_repository_is_reported(running: Running) -> None:
    for endpoint in ("/git/status", "/git/diff", "/git/log"):
        answer = await running.get(endpoint)
        assert (answer["code"], "not a git repository" in answer["message"]) == ("git_failed", True)
