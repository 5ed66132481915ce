"""A merge or push that fails is in the inbox until a later attempt succeeds or a member dismisses it."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from sessions_app.accounts.models import TeamRole
from sessions_app.attention.services import inbox
from sessions_app.finish.models import FinishIntent, record_plan, settle_done, settle_refused, settle_unknown
from sessions_app.finish.rules.finish import FinishKind, Refusal
from sessions_app.kernel.rules.states import SessionState
from sessions_app.models import AttentionItem, TaskSession, session_transaction
from tests.finish.intents import RESULT, give_right, request
from tests.supervisor.rows import fresh, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]
CONFLICT = Refusal("merge_conflict", "One file is in conflict.", ("README.md",))
DENIED = Refusal("remote_denied", "The server does not accept the key or token.")


def fail(intent: FinishIntent, refusal: Refusal = CONFLICT) -> FinishIntent:
    assert settle_refused(intent, refusal)
    return intent


def open_items(session: TaskSession) -> list[AttentionItem]:
    return list(AttentionItem.objects.filter(session=session, kind="finish", resolved_at=None))


def push(session: TaskSession, target: str = "refs/heads/main") -> FinishIntent:
    values = {"kind": FinishKind.PUSH, "strategy": "", "remote": "ssh://git.example/a.git", "target_ref": target}
    return request(session, None, **values)


def item_of(user: User) -> AttentionItem:
    return inbox.open_items_for(user).get(kind="finish")


def test_refused_merge_asks_for_the_next_step_until_one_succeeds() -> None:
    intent = fail(request())
    (item,) = open_items(intent.session)
    assert item.path == f"/tasks/{item.task_id}/sessions/{item.session_id}/finish/"
    assert "resolve the conflicts" in item.next_step
    again = request(intent.session, expected_commit="d" * 40)
    assert open_items(intent.session), "a request has not succeeded yet"
    record_plan(again, RESULT)
    settle_done(again)
    assert fresh(item).resolution == "done"


def test_outcome_in_doubt_says_what_to_look_at() -> None:
    intent = push(make_session())
    settle_unknown(intent, "push_outcome_unknown", "Someone may have moved it.")
    (item,) = open_items(intent.session)
    assert item.path.endswith("/push/")
    assert item.what.startswith("It is not known whether the push to ") and "Look where the branch is" in item.next_step


def test_merges_and_pushes_and_targets_have_items_of_their_own() -> None:
    session = fail(request()).session
    fail(push(session), DENIED)
    fail(push(session, "refs/heads/next"), DENIED)
    assert len(open_items(session)) == 3
    done = push(session)
    record_plan(done, RESULT)
    settle_done(done)
    assert sorted(item.key.split(":")[1] for item in open_items(session)) == ["merge", "push"]


def test_later_failure_is_new_again_with_its_own_reason() -> None:
    intent = fail(request())
    user = make_user()
    inbox.acknowledge_item(item_of(user), user)
    fail(request(intent.session), Refusal("merge_target_moved", "The base has moved."))
    (item,) = open_items(intent.session)
    assert "The base has moved." in item.quoted
    assert inbox.unseen_items_for(user).get(kind="finish").id == item.id


def test_member_settles_it_for_everyone_and_a_viewer_only_for_the_viewer(client: Client) -> None:
    session = fail(request()).session
    member, viewer = make_user(), make_user("viewer")
    TeamRole.objects.create(user=viewer, team=session.task.team, role=TeamRole.Role.VIEWER)
    inbox.dismiss_item(item_of(viewer), viewer)
    assert not inbox.open_items_for(viewer).exists()
    client.force_login(member)
    assert client.post(f"/attention/{item_of(member).id}/dismiss/").status_code == 302
    assert not open_items(session)
    assert AttentionItem.objects.get(kind="finish").resolution == "dismissed"


def test_it_is_the_own_item_of_whoever_asked() -> None:
    asked, other = make_user("asked"), make_user("other")
    session = make_session(owner=make_user("owner"))
    give_right(session)
    fail(request(session, by=asked))
    mine = [user for user in (asked, other) if inbox.open_items_for(user).filter(inbox.own_items(user)).exists()]
    assert mine == [asked]


def test_end_of_the_session_does_not_settle_it() -> None:
    session = fail(request()).session
    with session_transaction(session.id) as transaction:
        transaction.set_fields(state=SessionState.COMPLETED)
    assert open_items(session)
