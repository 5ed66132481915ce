"""A commit, a turn, or what is not committed is shown alone: from the workspace as from saved work."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from executors_app.agentctl.workspace.review_parts import Part as WorkspacePart
from executors_app.agentctl.workspace.review_parts import PartOfBranch
from executors_app.agentctl.workspace.snapshots import take_snapshot
from executors_app.machine.git.worktrees import Worktree
from executors_app.repositories import recovery_refs, saved_branch
from sessions_app.models import Task, Turn
from sessions_app.review.rules import wording
from sessions_app.review.rules.parts import Part
from tests.executors.repositories import commit, run_git
from tests.workspace.served import Served
from tests.workspace.trees import SESSION, git_of, snapshot_tree

pytestmark = pytest.mark.any_database

ZEROS: Final = "0" * 40
PARTS: Final[Mapping[str, Callable[[Mapping[str, str]], tuple[dict[str, str], list[str]]]]] = {
    "of the first commit": lambda made: ({"commit": made["first"]}, ["README"]),
    "of a commit": lambda made: ({"commit": made["second"]}, ["second"]),
    "of a turn": lambda made: ({"before": made["before"], "after": made["after"]}, ["README", "second", "untracked"]),
    "of a turn without changes": lambda made: ({"before": made["after"], "after": made["after"]}, []),
    "uncommitted": lambda made: ({}, ["README", "untracked"]),
}


@pytest.fixture
def made(repository: Path, worktree: Worktree) -> dict[str, str]:
    """Return the commits and snapshots of a worktree in which one turn has committed and changed files."""
    root = worktree.path
    first = run_git(root, "rev-parse", "HEAD")
    before = snapshot_tree(root).commit
    second = commit(root, "second", "two\n")
    (root / "README").write_text("changed\n")
    (root / "untracked").write_text("new\n")
    after = snapshot_tree(root).commit
    run_git(repository, "branch", "base", first)
    foreign = run_git(repository, "commit-tree", f"{first}^{{tree}}", "-m", "Of another session")
    return {"first": first, "second": second, "before": before, "after": after, "foreign": foreign}


def read_both(repository: Path, worktree: Worktree, part: Mapping[str, str], owner: str = SESSION) -> dict[str, Any]:
    """Return what the workspace answers, which saved work answers, too."""
    git = git_of(worktree.path)
    shown = PartOfBranch(git, owner, WorkspacePart.parse(part))
    live = shown.list_changes("base")
    paths = [file["path"] for file in live["files"]] or ["README"]
    live_hunks = shown.read_hunks(paths, 3)
    git.close()
    kept = recovery_refs.find_saved_work(repository, SESSION, worktree.branch)
    compared = saved_branch.compare_saved(kept, repository, "base")
    saved = saved_branch.saved_part_changes(kept, compared, part, owner)
    hunks = saved_branch.saved_part_hunks(kept, part, owner, paths, 3)
    assert saved.pop("kept") == hunks.pop("kept")
    assert (saved, hunks) == (live, live_hunks)
    return {**live, "hunks": live_hunks["files"]}


@pytest.mark.parametrize("name", PARTS)
def test_part_lists_its_own_files(repository: Path, worktree: Worktree, made: dict[str, str], name: str) -> None:
    part, paths = PARTS[name](made)
    found = read_both(repository, worktree, part)
    assert [file["path"] for file in found["files"]] == paths
    assert [file["version"] for file in found["files"]] == [
        each["version"] for each in found["hunks"] if each["change"]
    ]
    assert (found["base"], found["ahead"], found["part_problem"]) == (None, None, "")
    assert [each["subject"] for each in found["commits"]] == ["Write second"]


def test_hunks_of_a_turn_are_those_between_its_snapshots(
    repository: Path, worktree: Worktree, made: dict[str, str]
) -> None:
    found = read_both(repository, worktree, {"before": made["before"], "after": made["after"]})
    lines = [hunk["lines"] for file in found["hunks"] for hunk in file["hunks"]]
    assert lines == [["-hello", "+changed"], ["+two"], ["+new"]]


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"commit": "foreign"}, "not_of_branch"),
        ({"commit": ZEROS}, "not_of_branch"),
        ({"before": ZEROS, "after": "after"}, "not_stored"),
        ({"before": "before", "after": "second"}, "not_stored"),
    ],
)
def test_what_is_no_part_of_this_branch_is_not_shown(
    repository: Path, worktree: Worktree, made: dict[str, str], part: dict[str, str], problem: str
) -> None:
    found = read_both(repository, worktree, {name: made.get(value, value) for name, value in part.items()})
    assert (found["files"], found["part_problem"]) == ([], problem)
    assert [file["change"] for file in found["hunks"]] == [""]


def test_snapshots_of_another_session_are_not_shown(repository: Path, worktree: Worktree, made: dict[str, str]) -> None:
    part = {"before": made["before"], "after": made["after"]}
    assert read_both(repository, worktree, part, owner=str(uuid.uuid4()))["part_problem"] == "not_stored"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "branch"),
        ("uncommitted", "uncommitted"),
        (f"commit:{'a' * 40}", f"commit:{'a' * 40}"),
        ("turn:00000000000000000000000000000001", "turn:00000000-0000-0000-0000-000000000001"),
        *[
            (text, None)
            for text in ("x", "commit", "commit:HEAD", "commit:--all", "turn:1", "branch:1", "uncommitted:1")
        ],
    ],
)
def test_part_is_named_in_one_way(text: str, name: str | None) -> None:
    if name is None:
        with pytest.raises(ValueError):
            Part.parse(text)
    else:
        assert str(Part.parse(text)) == name


def test_part_is_described_in_words() -> None:
    sums = {"count": 1, "additions": 2, "deletions": 0, "truncated": True, "base": None}
    for kind, words in (
        ("uncommitted", "not committed"),
        ("commit", "changed in commit abcdef01"),
        ("turn", "changed in"),
    ):
        part = {"kind": kind, "id": "abcdef0123", "problem": ""}
        assert wording.branch_sentences({**sums, "part": part})[0].startswith(f"1 file {words}")
    part = {"kind": "commit", "id": "a", "problem": "not_of_branch"}
    assert wording.branch_sentences({**sums, "part": part}) == ["This branch has no such commit."]
    for prompt, origin, words in (
        (" Fix\n it", "prompt", "Fix it"),
        ("", "agent", "Begun by the agent"),
        ("", None, "A turn"),
    ):
        assert wording.turn_words({"prompt": prompt, "origin": origin}) == words


def turn_of(served: Served, number: int, **values: Any) -> Turn:
    at = timezone.now() + timedelta(minutes=number)
    fields = {"message_id": f"m{number}", "state": "completed", "started_at": at, "ended_at": at, **values}
    return Turn.objects.create(session=served.session, **fields)


@pytest.fixture
def turns(served: Served) -> dict[str, Turn]:
    """Return turns with and without snapshots, of which one has changed a file."""
    Task.objects.update(base_branch="main")
    root = served.workspace
    run_git(root, "branch", "--move", "main")
    run_git(root, "switch", "--quiet", "--create", "work")
    owner = "session-1"  # as the agentctl of this place was told
    git, copy = git_of(root), served.place.base / "copy"
    before = take_snapshot(git, owner, copy, "turn_start").commit
    commit(root, "made", "by the turn\n")
    after = take_snapshot(git, owner, copy, "turn_end").commit
    git.close()
    (root / "later").write_text("not by the turn\n")
    return {
        "shown": turn_of(served, 1, snapshot_before=before, snapshot_after=after),
        "without": turn_of(served, 2, snapshot_before=after),
        "gone": turn_of(served, 3, snapshot_before=ZEROS, snapshot_after=ZEROS),
        "open": turn_of(served, 4, state="running", ended_at=None, snapshot_before=after),
        "wait": turn_of(served, 5, has_process=False),
    }


def test_turn_shows_what_it_changed_or_why_that_is_not_known(
    served: Served, turns: dict[str, Turn], api: APIClient
) -> None:
    whole = api.get(served.url("review/")).json()
    assert (whole["part"]["kind"], [file["path"] for file in whole["files"]]) == ("branch", ["later", "made"])
    assert [commit["subject"] for commit in whole["commits"]] == ["Write made"]
    assert {turn["id"]: turn["problem"] for turn in whole["turns"]} == {
        str(turns["open"].id): "not_ended",
        str(turns["gone"].id): "",
        str(turns["without"].id): "no_snapshot",
        str(turns["shown"].id): "",
    }
    answers = {name: api.get(served.url(f"review/?of=turn:{turns[name].id}")) for name in turns}
    assert answers.pop("wait").status_code == 404
    assert {
        name: ([file["path"] for file in answer.json()["files"]], answer.json()["part"]["problem"])
        for name, answer in answers.items()
    } == {
        "shown": (["made"], ""),
        "without": ([], "no_snapshot"),
        "gone": ([], "not_stored"),
        "open": ([], "not_ended"),
    }

    for name, change in (("shown", "added"), ("gone", ""), ("open", "")):
        (file,) = api.get(served.url(f"review/hunks/?path=made&of=turn:{turns[name].id}")).json()["files"]
        assert file["change"] == change
    (file,) = api.get(served.url("review/hunks/?path=later&of=uncommitted")).json()["files"]
    assert file["hunks"][0]["lines"] == ["+not by the turn"]
    assert api.get(served.url("review/?of=commit:HEAD")).json()["details"].keys() == {"of"}


def test_agentctl_refuses_what_is_no_commit_id(served: Served) -> None:
    for query in ({"commit": "HEAD"}, {"before": ZEROS}, {"commit": ZEROS, "before": ZEROS, "after": ZEROS}):
        with pytest.raises(Exception, match="commit"):
            WorkspacePart.parse(query)
