"""A branch is merged without the repository's settings, from the commits that were confirmed, and once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from executors_app.repositories import branch_merge
from executors_app.repositories.branch_merge import (
    MergeRefused,
    MergeRequest,
    apply_merge,
    find_target,
    is_merged,
    prepare_merge,
    preview_merge,
)
from executors_app.repositories.git import GitFailed
from executors_app.repositories.team import TeamRepository
from tests.executors.repositories import commit, make_repository, run_git

BRANCH = "refs/heads/kandev/1"
MAIN = "refs/heads/main"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository whose ``main`` and session branch both have commits of their own; neither is checked out."""
    path = make_repository(tmp_path / "team")
    run_git(path, "checkout", "--quiet", "-b", "kandev/1")
    commit(path, "one", "1\n")
    commit(path, "two", "2\n")
    run_git(path, "checkout", "--quiet", "main")
    commit(path, "other", "other\n")
    run_git(path, "checkout", "--quiet", "--detach")
    return path


def request_of(path: Path, strategy: str = "merge", **values: object) -> MergeRequest:
    made = MergeRequest(
        strategy=strategy,
        branch_ref=BRANCH,
        branch_commit=run_git(path, "rev-parse", BRANCH),
        target_ref=MAIN,
        expected_commit=run_git(path, "rev-parse", MAIN),
        message="Add one and two\n\nWith a body",
        name="Ada <Lovelace>\n",
        email="ada@example.org",
        at=datetime(2031, 3, 1, 12, tzinfo=UTC),
    )
    return replace(made, **values)  # type: ignore[arg-type]


def merge(path: Path, request: MergeRequest) -> str:
    team = TeamRepository.open(path)
    result = prepare_merge(team, request)
    assert run_git(path, "rev-parse", MAIN) == request.expected_commit, "preparing changes nothing"
    apply_merge(team, request, result, "finish-1")
    assert run_git(path, "rev-parse", MAIN) == result
    assert is_merged(team, request, result)
    run_git(path, "fsck", "--strict")
    return result


def log(path: Path, pattern: str, *revisions: str) -> list[str]:
    return run_git(path, "log", f"--format={pattern}", *revisions).splitlines()


@pytest.mark.parametrize(
    ("strategy", "subjects", "parents"),
    [
        ("merge", ["Add one and two", "Write other", "Write two", "Write one", "Write README"], 2),
        ("squash", ["Add one and two", "Write other", "Write README"], 1),
        ("rebase", ["Write two", "Write one", "Write other", "Write README"], 1),
    ],
)
def test_branch_is_merged_as_the_strategy_says(
    repository: Path, strategy: str, subjects: list[str], parents: int
) -> None:
    request = request_of(repository, strategy)
    result = merge(repository, request)
    assert sorted(log(repository, "%s", MAIN)) == sorted(subjects)
    assert len(log(repository, "%P", "-1", MAIN)[0].split()) == parents
    assert run_git(repository, "ls-tree", "--name-only", MAIN).split() == ["README", "one", "other", "two"]
    assert log(repository, "%cn <%ce> %ct", "-1", MAIN) == ["Ada Lovelace <ada@example.org> 1930132800"]
    author = "Test" if strategy == "rebase" else "Ada Lovelace"
    assert log(repository, "%an", "-1", MAIN) == [author]
    assert prepare_again(repository, request) == result, "the same request makes the same commit"


def prepare_again(path: Path, request: MergeRequest) -> str:
    run_git(path, "update-ref", MAIN, request.expected_commit)
    return prepare_merge(TeamRepository.open(path), request)


def test_rebase_onto_an_unchanged_base_keeps_the_commits(repository: Path) -> None:
    run_git(repository, "update-ref", MAIN, f"{MAIN}~1")
    request = request_of(repository, "rebase")
    assert merge(repository, request) == request.branch_commit


def test_repeated_merge_moves_nothing_and_is_found(repository: Path) -> None:
    request = request_of(repository)
    result = merge(repository, request)
    team = TeamRepository.open(repository)
    apply_merge_after_the_move(team, request, result)
    run_git(repository, "checkout", "--quiet", "main")
    later = commit(repository, "later", "later\n")
    assert is_merged(team, request, result), "also below commits that were added since"
    assert run_git(repository, "rev-parse", MAIN) == later


def apply_merge_after_the_move(team: TeamRepository, request: MergeRequest, result: str) -> None:
    with pytest.raises(MergeRefused) as caught:
        apply_merge(team, request, result, "finish-1")
    assert caught.value.code == "merge_target_moved"


def test_target_that_moved_elsewhere_is_not_merged(repository: Path) -> None:
    request = request_of(repository)
    team = TeamRepository.open(repository)
    result = prepare_merge(team, request)
    assert not is_merged(team, request, result)
    run_git(repository, "update-ref", MAIN, f"{MAIN}~1")
    assert not is_merged(team, request, result)


def test_conflicts_are_listed_by_file(repository: Path) -> None:
    run_git(repository, "checkout", "--quiet", "main")
    commit(repository, "one", "another\n")
    (repository / "deep").mkdir()
    commit(repository, "deep/é", "x\n")
    run_git(repository, "checkout", "--quiet", "--detach")
    for strategy in ("merge", "squash", "rebase"):
        with pytest.raises(MergeRefused) as caught:
            prepare_merge(TeamRepository.open(repository), request_of(repository, strategy))
        assert (caught.value.code, caught.value.conflicts) == ("merge_conflict", ("one",))


def test_moved_branch_target_and_checked_out_target_are_refused(repository: Path) -> None:
    request = request_of(repository)
    wrong = {
        "merge_branch_moved": replace(request, branch_commit=request.expected_commit),
        "merge_target_moved": replace(request, expected_commit=request.branch_commit),
        "merge_branch_missing": replace(request, branch_ref="refs/heads/kandev/2"),
        "merge_target_missing": replace(request, target_ref="refs/heads/none"),
    }
    for code, changed in wrong.items():
        assert refusal(repository, changed) == code
    assert refusal(repository, replace(request, target_ref=BRANCH)) == "merge_target_missing"
    run_git(repository, "checkout", "--quiet", "main")
    assert refusal(repository, request) == "merge_target_checked_out"


def test_target_of_a_worktree_is_refused_and_a_bare_head_is_not(repository: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.git"
    run_git(tmp_path, "clone", "--quiet", "--bare", str(repository), str(bare))
    run_git(bare, "symbolic-ref", "HEAD", MAIN)
    merge(bare, request_of(bare))
    run_git(repository, "worktree", "add", "--quiet", str(tmp_path / "elsewhere"), "main")
    assert refusal(repository, request_of(repository)) == "merge_target_checked_out"


def refusal(path: Path, request: MergeRequest) -> str:
    with pytest.raises(MergeRefused) as caught:
        prepare_merge(TeamRepository.open(path), request)
    return caught.value.code


def test_branch_without_anything_new_or_in_common_is_refused(repository: Path) -> None:
    request = request_of(repository)
    run_git(repository, "update-ref", BRANCH, f"{MAIN}~1")
    assert refusal(repository, request_of(repository)) == "merge_nothing"
    run_git(repository, "checkout", "--quiet", "--orphan", "alone")
    run_git(repository, "commit", "--quiet", "-m", "Alone")
    run_git(repository, "update-ref", BRANCH, "refs/heads/alone")
    assert refusal(repository, request_of(repository)) == "merge_unrelated"
    assert request.branch_commit != request.expected_commit


def test_rebase_of_merges_is_refused(repository: Path) -> None:
    run_git(repository, "checkout", "--quiet", "kandev/1")
    run_git(repository, "merge", "--quiet", "--no-ff", "-m", "Merge", "main~1", "--allow-unrelated-histories")
    run_git(repository, "checkout", "--quiet", "-b", "side", "kandev/1~1")
    commit(repository, "side", "side\n")
    run_git(repository, "checkout", "--quiet", "kandev/1")
    run_git(repository, "merge", "--quiet", "--no-ff", "-m", "Merge", "side")
    run_git(repository, "checkout", "--quiet", "--detach")
    assert refusal(repository, request_of(repository, "rebase")) == "merge_has_merges"


def test_nothing_of_the_repository_runs_or_decides(repository: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {ran}\nexit 1\n")
    script.chmod(0o755)
    for hook in ("pre-merge-commit", "reference-transaction", "post-merge", "commit-msg", "update"):
        (repository / ".git" / "hooks" / hook).write_text(script.read_text())
        (repository / ".git" / "hooks" / hook).chmod(0o755)
    for key in ("merge.evil.driver", "filter.evil.clean", "filter.evil.smudge", "core.fsmonitor", "gpg.program"):
        run_git(repository, "config", key, str(script))
    run_git(repository, "config", "commit.gpgSign", "true")
    (repository / ".git" / "info").mkdir(exist_ok=True)
    (repository / ".git" / "info" / "attributes").write_text("* merge=evil filter=evil\n")
    worktree = tmp_path / "worktree"
    run_git(repository, "config", "core.fsmonitor", "false")
    run_git(repository, "-c", "core.hooksPath=/dev/null", "worktree", "add", "--quiet", "--detach", str(worktree))
    ran.unlink(missing_ok=True)
    team = TeamRepository.open(repository)
    request = request_of(repository)
    result = prepare_merge(team, request)
    apply_merge(team, request, result, "finish-1")
    assert not ran.exists()


def test_preview_says_what_a_merge_would_do(repository: Path) -> None:
    team = TeamRepository.open(repository)
    found = preview_merge(team, request_of(repository))
    assert (found.ahead, found.behind, found.problem) == (2, 1, "")
    assert found.subjects == ("Write one", "Write two")
    run_git(repository, "checkout", "--quiet", "main")
    commit(repository, "two", "another\n")
    found = preview_merge(team, request_of(repository))
    assert (found.problem, found.conflicts) == ("merge_conflict", ("two",))


def test_target_is_a_branch_by_its_name_only(repository: Path) -> None:
    run_git(repository, "tag", "v1", "main")
    run_git(repository, "tag", "main", "main~1")
    team = TeamRepository.open(repository)
    names = ("main", MAIN, "v1", "kandev/1", "refs/tags/main", "main~1", "", "-x")
    assert [find_target(team, name) for name in names] == [MAIN, MAIN, "", "", "", "", "", ""]
    run_git(repository, "checkout", "--quiet", "main", "--")
    assert find_target(TeamRepository.open(repository), "") == MAIN


def test_merge_that_is_too_long_to_rebase_is_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branch_merge, "MAX_REBASED", 1)
    assert refusal(repository, request_of(repository, "rebase")) == "merge_too_long"


def test_rebase_that_takes_too_long_is_told_as_that(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branch_merge, "PREVIEW_SECONDS", 0.0)
    monkeypatch.setattr(branch_merge, "MERGE_SECONDS", 0.0)
    team, request = TeamRepository.open(repository), request_of(repository, "rebase")
    preview = branch_merge.preview_merge(team, request)
    assert (preview.problem, preview.ahead, preview.conflicts) == ("merge_too_large", 2, ())
    assert refusal(repository, request) == "merge_too_large"
    assert branch_merge.preview_merge(team, request_of(repository, "squash")).problem == ""


def test_locked_target_is_tried_again(repository: Path) -> None:
    request = request_of(repository)
    team = TeamRepository.open(repository)
    result = prepare_merge(team, request)
    lock = repository / ".git" / f"{MAIN}.lock"
    lock.write_text("")
    with pytest.raises(GitFailed):
        apply_merge(team, request, result, "finish-1")
    lock.unlink()
    apply_merge(team, request, result, "finish-1")
    assert is_merged(team, request, result)
