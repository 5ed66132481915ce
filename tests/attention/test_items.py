"""Items are raised with the change that calls for somebody, once, and resolved with the change that ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from executors_app.agentctl.protocol import JournalKind
from sessions_app.domain.attention import DETAIL_LIMIT, AttentionKind, Notice
from sessions_app.models import (
    AttentionItem,
    Prompt,
    Run,
    SessionTransaction,
    TaskSession,
    raise_item,
    session_transaction,
)
from sessions_app.services import intents, prompts
from sessions_app.supervisor.outcomes import StartFailure, write_start_failure, write_stopped
from sessions_app.supervisor.sweep.actions import _raise_owner_left
from tests.supervisor.journals import Journal, hear
from tests.supervisor.rows import MINE, change, fresh, make_session, make_user, running_session

pytestmark = pytest.mark.django_db
GHOST = "ghp_0123456789abcdefABCDEF0123456789abcd"


def open_kinds(session: TaskSession) -> list[str]:
    return sorted(AttentionItem.objects.filter(session=session, resolved_at=None).values_list("kind", flat=True))


def told(session: TaskSession) -> list[tuple[str, str]]:
    rows = session.events.filter(name="session.attention").order_by("seq").values_list("payload", flat=True)
    return [(payload["kind"], payload["state"]) for payload in rows]


def edit(session: TaskSession, does: Callable[[SessionTransaction], Any]) -> None:
    with session_transaction(session.id) as transaction:
        does(transaction)


def in_turn(journal: Journal) -> TaskSession:
    session = running_session("do it")
    key = session.prompts.get().message_id
    change(session.prompts.get(), state="sending", journal_epoch="epoch-1")
    hear(session, journal.turn_begins(key))
    return session


def test_a_turn_that_ends_needs_a_look_until_the_next_one_begins() -> None:
    journal = Journal()
    session = in_turn(journal)
    assert open_kinds(session) == []
    hear(session, [journal.completes("m")])
    assert open_kinds(session) == ["idle"]
    item = AttentionItem.objects.get()
    assert item.key == f"idle:{Run.objects.get().id}"
    assert (item.task_id, bool(item.what and item.why and item.next_step)) == (session.task_id, True)
    hear(session, journal.turn_begins("next"))
    assert open_kinds(session) == []
    assert told(session) == [("idle", "raised"), ("idle", "resolved")]


def test_a_turn_behind_which_another_prompt_waits_needs_no_look() -> None:
    journal = Journal()
    session = in_turn(journal)
    Prompt.objects.create(session=session, message_id="queued", text="and then this")
    hear(session, [journal.completes("m")])
    assert open_kinds(session) == []


@pytest.mark.parametrize("state", ["cancelled", "stopped"])
def test_what_a_user_has_ended_needs_no_look(state: str) -> None:
    journal = Journal()
    session = in_turn(journal)
    if state == "stopped":
        change(fresh(session), desired_state="stopped", stopped_by_user=True)
        write_stopped(session.id, MINE, "stopped")
    else:
        hear(session, [journal.line(JournalKind.TURN_CANCELLED, message_id="m")])
    assert open_kinds(session) == []


@pytest.mark.parametrize(
    ("ends", "resolution"),
    [
        (lambda j: [j.line(JournalKind.PERMISSION_RESOLVED, permission_id="q1", option_id="yes")], "resolved"),
        (lambda j: [j.line(JournalKind.PERMISSION_CANCELLED, permission_id="q1", reason="x")], "cancelled"),
        (lambda j: [j.exits("m")], "agent_gone"),
    ],
)
def test_a_permission_waits_until_it_is_settled(ends: Any, resolution: str) -> None:
    journal = Journal()
    session = in_turn(journal)
    hear(session, [journal.asks("q1")])
    item = AttentionItem.objects.get(key="permission:q1")
    assert (item.kind, item.resolved_at, "rm" in item.why) == ("permission", None, True)
    hear(session, [journal.asks("q1")])
    assert AttentionItem.objects.filter(kind="permission").count() == 1
    hear(session, ends(journal))
    item.refresh_from_db()
    assert (item.resolved_at is not None, item.resolution) == (True, resolution)


@pytest.mark.parametrize("settle", ["resend", "dismiss"])
def test_an_interrupted_turn_waits_until_somebody_settles_it(settle: str, settings: Any) -> None:
    settings.KANDEV_CONTINUE = "off"
    journal = Journal()
    session = in_turn(journal)
    message_id = session.prompts.get().message_id
    hear(session, [journal.exits(message_id)])
    assert open_kinds(session) == ["cut_short"]
    assert AttentionItem.objects.get().key == f"cut_short:{session.id}:{message_id}"
    if settle == "resend":
        prompts.resend_prompt(session.id, message_id, make_user())
    else:
        prompts.dismiss_prompt(session.id, message_id)
    assert open_kinds(session) == []


@pytest.mark.parametrize("settle", ["resend", "dismiss"])
def test_a_held_prompt_waits_until_somebody_settles_it(settle: str) -> None:
    session = running_session("do it")
    row = change(session.prompts.get(), state="sending")
    edit(session, lambda transaction: transaction.move_prompt(row, "hold"))
    item = AttentionItem.objects.get(kind="held")
    assert item.key == f"held:{session.id}:{row.message_id}"
    if settle == "resend":
        prompts.resend_prompt(session.id, row.message_id, make_user())
    else:
        prompts.dismiss_prompt(session.id, row.message_id)
    item.refresh_from_db()
    assert (item.resolved_at is not None, open_kinds(session)) == (True, [])


def test_a_prompt_that_is_held_once_more_is_the_same_item_and_news_again() -> None:
    session = running_session("do it")
    row = change(session.prompts.get(), state="sending")
    edit(session, lambda transaction: transaction.move_prompt(row, "hold"))
    item = AttentionItem.objects.get()
    item.marks.create(user=make_user(), acknowledged_at=item.created_at)
    edit(session, lambda transaction: transaction.move_prompt(row, "accept"))
    edit(session, lambda transaction: transaction.move_prompt(row, "hold"))
    again = AttentionItem.objects.get()
    assert (again.id, again.resolved_at, again.marks.count()) == (item.id, None, 0)
    assert told(session) == [("held", "raised"), ("held", "resolved"), ("held", "raised")]


def test_a_give_up_is_one_item_with_the_last_error_and_the_end_of_the_log() -> None:
    session = make_session("do it", start_attempts=5, state="STARTING")

    def give_up(transaction: SessionTransaction) -> None:
        transaction.log_tail = "x" * 20_000 + f"\ntoken={GHOST}\nboom"
        transaction.move_session("give_up", error_code="spawn_failed", error_message="No such program.")

    edit(session, give_up)
    item = AttentionItem.objects.get()
    assert (item.kind, item.key.split(":")[:2]) == ("gave_up", ["gave_up", str(session.id)])
    assert "5 starts" in item.why and "No such program." in item.why
    assert item.detail.endswith("boom") and GHOST not in item.detail and len(item.detail) <= DETAIL_LIMIT
    intents.request_resume(session.id, make_user())
    edit(session, lambda transaction: transaction.move_session("start"))
    assert open_kinds(session) == []
    edit(session, give_up)
    assert AttentionItem.objects.filter(kind="gave_up").count() == 2


def test_a_failed_start_that_is_tried_again_by_itself_calls_nobody() -> None:
    session = make_session(state="STARTING", start_attempts=1)
    order = session.intents.get()
    failure = StartFailure("spawn_failed", "No such program.", permanent=False)
    write_start_failure(session.id, order.id, None, failure)
    assert (fresh(session).state, open_kinds(session)) == ("ERROR", [])


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("context_mismatch", "The agent loaded a conversation that is not the one shown here"),
        ("worktree_missing", "The worktree of this session is gone and cannot be rebuilt"),
        ("not_resumable", "The session needs your decision"),
    ],
)
def test_an_error_that_nothing_cures_by_itself_waits_for_somebody(code: str, what: str) -> None:
    session = running_session()
    edit(session, lambda transaction: transaction.move_session("fail", error_code=code, error_message="Why it is so."))
    item = AttentionItem.objects.get()
    assert (item.kind, item.what, item.why) == ("error", what, "Why it is so.")
    edit(session, lambda transaction: transaction.move_session("fail", error_code=code, error_message="Said anew."))
    assert AttentionItem.objects.count() == 1
    edit(session, lambda transaction: transaction.move_session("ready"))
    assert open_kinds(session) == []


def test_what_may_live_and_only_does_not_answer_calls_nobody() -> None:
    session = running_session()
    edit(
        session,
        lambda transaction: transaction.move_session("fail", error_code="unreachable", error_message="No answer."),
    )
    assert open_kinds(session) == []


@pytest.mark.parametrize(
    ("kind", "reason", "turns", "raised"),
    [
        ("fresh", "auto", 1, ["receipt"]),
        ("fresh", "fresh_start", 1, []),
        ("fresh", "auto", 0, []),
        ("loaded", "auto", 1, []),
        ("injected", "auto", 1, []),
    ],
)
def test_a_start_that_lost_the_conversation_is_told_unless_it_was_asked_for(
    kind: str, reason: str, turns: int, raised: list[str]
) -> None:
    session = running_session()
    for _ in range(turns):
        Run.objects.create(session=session, message_id="m", state="completed", started_at=session.created_at)
    edit(session, lambda transaction: transaction.write_receipt(kind, "none", reason=reason))
    assert open_kinds(session) == raised


def test_an_owner_who_left_is_told_once() -> None:
    session = make_session()
    for _ in range(3):
        _raise_owner_left(session.id)
    item = AttentionItem.objects.get()
    assert (item.kind, "ada" in item.why, told(session)) == ("owner_left", True, [("owner_left", "raised")])
    edit(session, lambda transaction: transaction.move_session("start"))
    assert open_kinds(session) == []


@pytest.mark.parametrize("end", ["complete", "cancel"])
def test_a_session_that_has_ended_for_good_calls_nobody_any_more(end: str) -> None:
    session = running_session("do it")
    row = change(session.prompts.get(), state="sending")

    def trouble(transaction: SessionTransaction) -> None:
        transaction.move_prompt(row, "hold")
        transaction.move_session("fail", error_code="not_resumable")

    edit(session, trouble)
    assert open_kinds(session) == ["error", "held"]
    edit(session, lambda transaction: transaction.move_session(end))
    assert open_kinds(session) == []


def test_nothing_is_raised_where_the_change_itself_is_undone() -> None:
    session = running_session("do it")
    row = change(session.prompts.get(), state="sending")

    def fails(transaction: SessionTransaction) -> None:
        transaction.move_prompt(row, "hold")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        edit(session, fails)
    assert AttentionItem.objects.count() == 0


def test_words_of_an_agent_are_cut_and_lose_their_secrets() -> None:
    journal = Journal()
    session = in_turn(journal)
    asks = journal.asks("q1")
    asks["tool_call"] = {"title": f"curl -H 'Authorization: {GHOST}' " + "x" * 900}
    hear(session, [asks])
    why = AttentionItem.objects.get(kind="permission").why
    assert GHOST not in why and len(why) < 300


def test_raising_is_idempotent_by_key() -> None:
    session = make_session()
    notice = Notice(AttentionKind.ERROR, "error:one", "What", "Why", "Next")
    with session_transaction(session.id) as transaction:
        assert [raise_item(transaction, notice), raise_item(transaction, notice)] == [True, False]
    assert told(session) == [("error", "raised")]
