"""A merge is requested for what was reviewed, carried out once in a real repository, or refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sessions_app.finish.execution import carry_out
from sessions_app.finish.merging import MergeEffect
from sessions_app.finish.models import FinishIntent, record_plan
from sessions_app.finish.rules.finish import FinishState
from sessions_app.finish.services import read_merge_state, read_uncommitted, request_intent, suggested_message
from sessions_app.kernel.services.errors import FinishPending, Invalid, NotMergeable, ReadOnly
from sessions_app.review.services import find_base
from tests.executors.repositories import run_git
from tests.finish.repositories import MAIN, Mergeable, mergeable
from tests.supervisor.rows import change, fresh, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]


@pytest.fixture
def merged(tmp_path: Path) -> Mergeable:
    return mergeable(tmp_path / "team")


@pytest.mark.parametrize(
    ("strategy", "subject", "count"),
    [("merge", "Faster parser", 5), ("squash", "Faster parser", 3), ("rebase", "Write two", 4)],
)
def test_requested_merge_is_carried_out_once(merged: Mergeable, strategy: str, subject: str, count: int) -> None:
    intent = merged.request(strategy=strategy)
    before = merged.at()
    assert carry_out(intent.id)
    row = fresh(intent)
    assert (row.state, row.result_commit) == (FinishState.DONE, merged.at())
    assert (merged.subjects()[0], len(merged.subjects())) == (subject, count)
    again = merged.request(strategy=strategy, target_commit=before)
    assert again.id == intent.id, "the same confirmation is the same merge"
    assert carry_out(again.id)
    assert merged.at() == row.result_commit


def test_merge_that_an_ending_supervisor_completes_meanwhile_is_done(
    merged: Mergeable, monkeypatch: pytest.MonkeyPatch
) -> None:
    intent = merged.request()
    effect = MergeEffect()
    record_plan(intent, effect.prepare(intent))
    effect.apply(intent)
    # The next supervisor has looked before that.
    monkeypatch.setattr(MergeEffect, "is_done", lambda *_: False)
    assert carry_out(intent.id)
    assert (fresh(intent).state, fresh(intent).result_commit) == (FinishState.DONE, merged.at())
    effect.apply(intent)


def test_merge_whose_base_was_set_back_is_not_told_as_done(merged: Mergeable) -> None:
    before = merged.at()
    intent = merged.request(strategy="squash")
    assert carry_out(intent.id)
    run_git(merged.path, "update-ref", MAIN, before)
    assert read_merge_state(merged.session).problem == "merge_taken_back"
    with pytest.raises(NotMergeable) as caught:
        merged.request(strategy="squash")
    assert caught.value.details["reason"] == "merge_taken_back"
    merged.commit_to(merged.branch, "three", "3\n")
    assert carry_out(merged.request(strategy="squash").id)
    assert merged.subjects()[0] == "Faster parser"


def test_messages_are_suggested_from_title_and_subjects(merged: Mergeable) -> None:
    state = read_merge_state(merged.session)
    assert (state.target, state.branch, state.problem) == ("main", merged.branch, "")
    assert state.preview is not None
    assert (state.preview.ahead, state.preview.behind) == (2, 1)
    assert suggested_message(merged.session, state, "squash") == "Faster parser\n\n* Write one\n* Write two"
    assert suggested_message(merged.session, state, "merge").startswith("Faster parser\n\nMerge kandev/")


def test_merge_needs_the_right_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ReadOnly):
        mergeable(tmp_path / "team", right=False).request()


def test_moved_branch_or_base_is_refused_with_the_present_commit(merged: Mergeable) -> None:
    reviewed, expected = merged.at(merged.branch), merged.at()
    moved = merged.commit_to(merged.branch, "three", "3\n")
    with pytest.raises(NotMergeable) as caught:
        merged.request(branch_commit=reviewed)
    assert caught.value.details == {"reason": "merge_branch_moved", "branch_commit": moved}
    merged.commit_to("main", "four", "4\n")
    with pytest.raises(NotMergeable) as caught:
        merged.request(target_commit=expected)
    assert caught.value.details["reason"] == "merge_target_moved"


def test_branch_that_moves_after_the_request_is_not_merged(merged: Mergeable) -> None:
    intent = merged.request()
    before = merged.at()
    merged.commit_to(merged.branch, "three", "3\n")
    assert carry_out(intent.id)
    row = fresh(intent)
    assert (row.state, row.error_code, merged.at()) == (FinishState.REFUSED, "merge_branch_moved", before)


def test_conflicts_are_named_and_nothing_is_requested(merged: Mergeable) -> None:
    merged.commit_to("main", "two", "other\n")
    with pytest.raises(NotMergeable) as caught:
        merged.request()
    assert caught.value.details == {"reason": "merge_conflict", "conflicts": ["two"]}
    assert not merged.session.finish_intents.exists()


def test_checked_out_base_is_refused(merged: Mergeable) -> None:
    run_git(merged.path, "checkout", "--quiet", "main")
    state = read_merge_state(merged.session)
    assert (state.problem, state.checked_out) == ("merge_target_checked_out", "main")
    with pytest.raises(NotMergeable):
        merged.request()


def test_second_merge_waits_for_the_end_of_the_first(merged: Mergeable) -> None:
    first = merged.request()
    merged.commit_to(merged.branch, "three", "3\n")
    with pytest.raises(FinishPending):
        merged.request()
    assert merged.session.finish_intents.get().id == first.id


def test_second_member_with_another_strategy_is_told_of_the_first(merged: Mergeable) -> None:
    before = merged.at()
    first = merged.request(strategy="squash")
    other = make_user("grace")
    values: dict[str, Any] = {"by": other, "strategy": "rebase", "target_commit": before}
    told = {"intent_id": str(first.id), "strategy": "squash", "by": make_user().username}
    for state in (FinishState.REQUESTED, FinishState.DONE):
        with pytest.raises(NotMergeable, match="has already requested to squash these commits") as caught:
            merged.request(**values)
        assert caught.value.details == {"reason": "merge_other_strategy", "state": str(state), **told}
        # Also if both have asked at once, and the second has not seen the row of the first.
        with pytest.raises(NotMergeable):
            request_intent(FinishIntent(**{**copied(first), "by": other, "strategy": "rebase"}))
        assert merged.request(**{**values, "strategy": "squash"}).id == first.id
        assert carry_out(first.id)


def copied(intent: FinishIntent) -> dict[str, Any]:
    """Return the values by which a second request is the same."""
    names = ("session", "kind", "remote", "branch_ref", "branch_commit", "target_ref", "expected_commit")
    return {name: getattr(intent, name) for name in names}


def test_detached_repository_is_merged_into_its_default_branch(merged: Mergeable) -> None:
    change(merged.session.task, base_branch="")
    repository = merged.session.task.repository
    assert repository is not None
    for default in ("", "gone"):
        change(repository, default_branch=default)
        state = read_merge_state(fresh(merged.session))
        assert (state.target, state.problem) == ("", "merge_target_missing")
        assert "Set the repository’s default branch" in state.message
    change(repository, default_branch="main")
    session = fresh(merged.session)
    assert (read_merge_state(session).target, find_base(session)) == ("main", "main")
    # What is checked out comes first, and is where sessions start.
    run_git(merged.path, "checkout", "--quiet", "-b", "trunk")
    assert (read_merge_state(session).target, find_base(session)) == ("trunk", "")
    change(session.task, base_branch="gone")
    session = fresh(session)
    assert "gone is not a branch of the repository" in read_merge_state(session).message
    assert find_base(session) == "gone"


@pytest.mark.parametrize("values", [{"strategy": "octopus"}, {"message": "x" * 20_001}, {"branch_commit": "main\0"}])
def test_invalid_requests_are_refused(merged: Mergeable, values: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        merged.request(**values)


def test_what_cannot_be_merged_says_why(merged: Mergeable, tmp_path: Path) -> None:
    def problem() -> str:
        return read_merge_state(fresh(merged.session)).problem

    run_git(merged.path, "update-ref", f"refs/heads/{merged.branch}", MAIN)
    assert problem() == "merge_nothing"
    change(merged.session.task, base_branch=merged.branch)
    assert problem() == "merge_target_missing"
    run_git(merged.path, "update-ref", "-d", f"refs/heads/{merged.branch}")
    assert problem() == "merge_branch_missing"
    merged.path.rename(tmp_path / "elsewhere")
    assert problem() == "merge_repository_unavailable"
    change(merged.session.task, repository=None)
    assert problem() == "merge_no_repository"


def test_uncommitted_work_is_unknown_without_a_workspace() -> None:
    change_of = make_session()
    assert not read_uncommitted(change_of).is_known
    assert make_user().is_active
