"""An intent is carried out once: looked up before it is repeated, ended once, and refused without the right."""

from __future__ import annotations

import errno

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError

from executors_app.wire.errors import RepositoryUnusable
from sessions_app.accounts.authorization import may_merge, may_push
from sessions_app.accounts.models import TeamRole
from sessions_app.finish.effects import EFFECTS
from sessions_app.finish.execution import Place, carry_out, open_intents
from sessions_app.finish.models import record_plan, settle_done
from sessions_app.finish.rules.finish import MAX_ATTEMPTS, FinishKind, FinishState, Refusal
from tests.finish.intents import BEFORE, RESULT, RecordedEffect, give_right, request
from tests.supervisor.rows import fresh, last_payload, make_session, make_user, names

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]


@pytest.fixture
def effect(monkeypatch: pytest.MonkeyPatch) -> RecordedEffect:
    made = RecordedEffect()
    for kind in FinishKind:
        monkeypatch.setitem(EFFECTS, kind, made)
    return made


def test_intent_moves_the_target_once_and_is_done(effect: RecordedEffect) -> None:
    intent = request()
    assert list(open_intents()) == [intent.id]
    assert carry_out(intent.id)
    row = fresh(intent)
    assert (row.state, row.result_commit, effect.target) == (FinishState.DONE, RESULT, RESULT)
    assert row.ended_at is not None
    assert open_intents() == {}
    assert names(intent.session)[-2:] == ["session.finish.requested", "session.finish.done"]
    assert carry_out(intent.id), "an intent that has ended is over"
    assert effect.calls == ["prepare", "apply"]


def test_target_that_was_moved_before_a_crash_is_not_moved_again(effect: RecordedEffect) -> None:
    intent = request()
    record_plan(intent, RESULT)
    effect.target = RESULT
    assert carry_out(intent.id)
    assert effect.calls == ["is_done"]
    assert fresh(intent).state == FinishState.DONE


def test_plan_whose_target_was_not_moved_is_carried_out(effect: RecordedEffect) -> None:
    intent = request()
    record_plan(intent, RESULT)
    assert carry_out(intent.id)
    assert effect.calls == ["is_done", "prepare", "apply"]
    assert effect.target == RESULT


def test_refusal_changes_nothing_and_is_told(effect: RecordedEffect) -> None:
    intent = request()
    effect.refusal = Refusal("merge_conflict", "One file is in conflict.", ("README.md",))
    assert carry_out(intent.id)
    row = fresh(intent)
    assert (row.state, row.error_code, row.conflicts) == (FinishState.REFUSED, "merge_conflict", ["README.md"])
    assert (row.result_commit, effect.target) == ("", BEFORE)
    told = last_payload(intent.session, "session.finish.refused")
    assert (told["error_code"], told["conflicts"]) == ("merge_conflict", ["README.md"])


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            RepositoryUnusable("The repository does not answer."),
            "finish_unavailable",
            "The repository does not answer.",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "finish_unavailable",
            "A file could not be read or written: No space left on device.",
        ),
        (
            RuntimeError("nobody expects this"),
            "finish_failed",
            "An unexpected error occurred (RuntimeError). The server log has the details.",
        ),
    ],
)
@pytest.mark.parametrize(("is_planned", "state"), [(False, FinishState.REFUSED), (True, FinishState.UNKNOWN)])
def test_attempts_that_fail_are_counted_and_end_as_what_is_known(
    effect: RecordedEffect, is_planned: bool, state: FinishState, error: Exception, code: str, message: str
) -> None:
    intent = request()
    if is_planned:
        record_plan(intent, RESULT)
    effect.unavailable = error
    for _ in range(MAX_ATTEMPTS - 1):
        assert not carry_out(intent.id)
    assert fresh(intent).error_message == message
    assert carry_out(intent.id)
    row = fresh(intent)
    assert (row.state, row.error_message) == (state, message)
    assert row.error_code == ("finish_outcome_unknown" if is_planned else code)
    assert last_payload(intent.session, f"session.finish.{state}")["error_code"] == row.error_code


def test_database_that_does_not_answer_is_no_attempt(effect: RecordedEffect) -> None:
    intent = request()
    effect.unavailable = OperationalError("the database is starting up")
    with pytest.raises(OperationalError):
        carry_out(intent.id)
    assert (fresh(intent).state, fresh(intent).attempts) == (FinishState.REQUESTED, 0)


def test_end_is_recorded_once_by_two_processes(effect: RecordedEffect) -> None:
    intent = request()
    record_plan(intent, RESULT)
    assert settle_done(fresh(intent))
    assert not settle_done(fresh(intent))
    assert names(intent.session).count("session.finish.done") == 1


def test_merge_of_a_user_who_lost_the_right_is_refused(effect: RecordedEffect) -> None:
    intent = request()
    TeamRole.objects.create(user=make_user(), team=intent.session.task.team, role=TeamRole.Role.VIEWER)
    assert carry_out(intent.id)
    assert fresh(intent).error_code == "finish_right_lost"
    assert effect.calls == []


def test_merge_and_push_need_rights_of_their_own() -> None:
    session = make_session()
    team, member, viewer = session.task.team, make_user(), make_user("viewer")
    TeamRole.objects.create(user=viewer, team=team, role=TeamRole.Role.VIEWER)
    admin, staff = make_user("admin"), make_user("staff")
    TeamRole.objects.create(user=admin, team=team, role=TeamRole.Role.ADMIN)
    User.objects.filter(id=staff.id).update(is_staff=True)
    stranger = User.objects.create(username="stranger", is_staff=True)

    def allowed() -> list[tuple[bool, bool]]:
        people = (member, viewer, admin, fresh(staff), stranger)
        return [(may_merge(user, team), may_push(user, team)) for user in people]

    nobody, both = (False, False), (True, True)
    assert allowed() == [nobody, nobody, both, both, nobody]
    give_right(session, "merge_branches")
    assert allowed() == [(True, False), nobody, both, both, nobody]
    give_right(session, "push_branches")
    assert allowed() == [both, nobody, both, both, nobody]


@pytest.mark.parametrize(
    ("remote", "host"),
    [
        ("git@Git.Example:team/a.git", "host git.example"),
        ("ssh://git@git.example:2222/team/b.git", "host git.example"),
        ("https://git.example/team/c.git", "host git.example"),
        ("of a later release", "host of a later release"),
    ],
)
def test_push_works_on_its_remote_and_its_server(remote: str, host: str) -> None:
    intent = request(make_session(), kind=FinishKind.PUSH, strategy="", remote=remote)
    assert open_intents() == {intent.id: Place(f"remote {remote}", host)}


def test_merge_works_on_its_repository() -> None:
    intent = request()
    assert open_intents() == {intent.id: Place(f"repository {intent.session.task.repository_id}")}
