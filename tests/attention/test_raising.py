"""An item is raised once, with the event that needs a person, and resolved with the event that ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from executors_app.wire.protocol import JournalKind
from sessions_app.attention.rules.notices import DETAIL_LIMIT, AttentionKind, Notice, tail
from sessions_app.models import (
    AttentionItem,
    Prompt,
    SessionTransaction,
    TaskSession,
    Turn,
    raise_item,
    session_transaction,
)
from sessions_app.prompts import services as prompts
from sessions_app.recovery.sweep.sweep_pass import _raise_owner_left
from sessions_app.sessions.services import intents
from sessions_app.starts.outcomes import StartFailure, write_start_failure, write_stopped
from tests.attention.reading import as_read
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import MINE, change, fresh, make_session, make_user, running_session

pytestmark = pytest.mark.django_db
GHOST = "ghp_0123456789abcdefABCDEF0123456789abcd"


def open_kinds(session: TaskSession) -> list[str]:
    return sorted(AttentionItem.objects.filter(session=session, resolved_at=None).values_list("kind", flat=True))


def attention_events(session: TaskSession) -> list[tuple[str, str]]:
    rows = session.events.filter(name="session.attention").order_by("seq").values_list("payload", flat=True)
    return [(payload["kind"], payload["state"]) for payload in rows]


def edit(session: TaskSession, does: Callable[[SessionTransaction], Any]) -> None:
    with session_transaction(session.id) as transaction:
        does(transaction)


def in_turn(journal: Journal) -> TaskSession:
    session = running_session("do it")
    key = session.prompts.get().message_id
    change(session.prompts.get(), state="sending", journal_epoch="epoch-1")
    ingest(session, journal.turn_begins(key))
    return session


def test_completed_turn_raises_an_idle_item_until_the_next_turn() -> None:
    journal = Journal()
    session = in_turn(journal)
    assert open_kinds(session) == []
    ingest(session, [journal.completes("m")])
    assert open_kinds(session) == ["idle"]
    item = AttentionItem.objects.get()
    assert item.key == f"idle:{Turn.objects.get().id}"
    assert (item.task_id, bool(item.what and item.why and item.next_step)) == (session.task_id, True)
    ingest(session, journal.turn_begins("next"))
    assert open_kinds(session) == []
    assert attention_events(session) == [("idle", "raised"), ("idle", "resolved")]


def test_completed_turn_with_a_queued_prompt_raises_nothing() -> None:
    journal = Journal()
    session = in_turn(journal)
    Prompt.objects.create(session=session, message_id="queued", text="and then this")
    ingest(session, [journal.completes("m")])
    assert open_kinds(session) == []


@pytest.mark.parametrize("state", ["cancelled", "stopped"])
def test_turn_ended_by_a_user_raises_nothing(state: str) -> None:
    journal = Journal()
    session = in_turn(journal)
    if state == "stopped":
        change(fresh(session), desired_state="stopped", stopped_by_user=True)
        write_stopped(session.id, MINE, "stopped")
    else:
        ingest(session, [journal.line(JournalKind.TURN_CANCELLED, message_id="m")])
    assert open_kinds(session) == []


def test_turn_that_the_agent_cancels_on_its_own_needs_a_review() -> None:
    journal = Journal()
    session = in_turn(journal)
    ingest(session, [journal.line(JournalKind.TURN_CANCELLED, message_id="m", by_agent=True)])
    assert open_kinds(session) == ["idle"]
    assert AttentionItem.objects.get(kind="idle").what == "The agent has cancelled its turn"


@pytest.mark.parametrize(
    ("ends", "resolution"),
    [
        (lambda j: [j.line(JournalKind.PERMISSION_RESOLVED, permission_id="q1", option_id="yes")], "resolved"),
        (lambda j: [j.line(JournalKind.PERMISSION_CANCELLED, permission_id="q1", reason="x")], "cancelled"),
        (lambda j: [j.exits("m")], "agent_gone"),
    ],
)
def test_permission_item_stays_open_until_the_request_ends(ends: Any, resolution: str) -> None:
    journal = Journal()
    session = in_turn(journal)
    ingest(session, [journal.requests_permission("q1")])
    item = AttentionItem.objects.get(key="permission:q1")
    assert (item.kind, item.resolved_at, "rm" in as_read(item).why) == ("permission", None, True)
    ingest(session, [journal.requests_permission("q1")])
    assert AttentionItem.objects.filter(kind="permission").count() == 1
    ingest(session, ends(journal))
    item.refresh_from_db()
    assert (item.resolved_at is not None, item.resolution) == (True, resolution)


@pytest.mark.parametrize("settle", ["resend", "dismiss"])
def test_interrupted_turn_item_stays_open_until_someone_settles_the_prompt(settle: str, settings: Any) -> None:
    settings.KANDEV_CONTINUE = "off"
    journal = Journal()
    session = in_turn(journal)
    message_id = session.prompts.get().message_id
    ingest(session, [journal.exits(message_id)])
    assert open_kinds(session) == ["cut_short"]
    assert AttentionItem.objects.get().key == f"cut_short:{session.id}:{message_id}"
    if settle == "resend":
        prompts.resend_prompt(session.id, message_id, make_user())
    else:
        prompts.dismiss_prompt(session.id, message_id)
    assert open_kinds(session) == []


@pytest.mark.parametrize("settle", ["resend", "dismiss"])
def test_held_prompt_item_stays_open_until_someone_settles_the_prompt(settle: str) -> None:
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


def test_prompt_held_again_reopens_its_item_as_new() -> None:
    session = running_session("do it")
    row = change(session.prompts.get(), state="sending")
    edit(session, lambda transaction: transaction.move_prompt(row, "hold"))
    item = AttentionItem.objects.get()
    item.marks.create(user=make_user(), acknowledged_at=item.created_at)
    edit(session, lambda transaction: transaction.move_prompt(row, "accept"))
    edit(session, lambda transaction: transaction.move_prompt(row, "hold"))
    again = AttentionItem.objects.get()
    assert (again.id, again.resolved_at, again.marks.count()) == (item.id, None, 0)
    assert attention_events(session) == [("held", "raised"), ("held", "resolved"), ("held", "raised")]


def test_giving_up_raises_one_item_with_last_error_and_log_tail() -> None:
    session = make_session("do it", start_attempts=5, state="STARTING")

    log = tail("x" * 20_000 + f"\ntoken={GHOST}\nboom")

    def give_up(transaction: SessionTransaction) -> None:
        transaction.log_tail = log
        transaction.move_session("give_up", error_code="spawn_failed", error_message="No such program.")

    edit(session, give_up)
    item = as_read(AttentionItem.objects.get())
    assert (item.kind, item.key.split(":")[:2]) == ("gave_up", ["gave_up", str(session.id)])
    assert "5 starts" in item.why and "No such program." in item.why
    assert item.detail.endswith("boom") and GHOST not in item.detail and len(item.detail) <= DETAIL_LIMIT
    intents.request_resume(session.id, make_user())
    edit(session, lambda transaction: transaction.move_session("start"))
    assert open_kinds(session) == []
    edit(session, give_up)
    assert AttentionItem.objects.filter(kind="gave_up").count() == 2


def test_failed_start_that_is_retried_raises_nothing() -> None:
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
def test_error_that_needs_a_person_raises_one_item(code: str, what: str) -> None:
    session = running_session()
    edit(session, lambda transaction: transaction.move_session("fail", error_code=code, error_message="Why it is so."))
    item = as_read(AttentionItem.objects.get())
    assert (item.kind, item.what, item.why) == ("error", what, "Why it is so.")
    edit(session, lambda transaction: transaction.move_session("fail", error_code=code, error_message="Said anew."))
    assert AttentionItem.objects.count() == 1
    edit(session, lambda transaction: transaction.move_session("ready"))
    assert open_kinds(session) == []


def test_unreachable_agentctl_raises_nothing() -> None:
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
def test_start_that_lost_the_conversation_raises_an_item_unless_requested(
    kind: str, reason: str, turns: int, raised: list[str]
) -> None:
    session = running_session()
    for _ in range(turns):
        Turn.objects.create(session=session, message_id="m", state="completed", started_at=session.created_at)
    edit(session, lambda transaction: transaction.write_receipt(kind, "none", reason=reason))
    assert open_kinds(session) == raised


def test_departed_owner_raises_one_item() -> None:
    session = make_session()
    for _ in range(3):
        _raise_owner_left(session.id)
    item = AttentionItem.objects.get()
    assert (item.kind, "ada" in item.why, attention_events(session)) == ("owner_left", True, [("owner_left", "raised")])
    edit(session, lambda transaction: transaction.move_session("start"))
    assert open_kinds(session) == []


@pytest.mark.parametrize("end", ["complete", "cancel"])
def test_session_that_ends_resolves_all_its_items(end: str) -> None:
    session = running_session("do it")
    row = change(session.prompts.get(), state="sending")

    def hold_and_fail(transaction: SessionTransaction) -> None:
        transaction.move_prompt(row, "hold")
        transaction.move_session("fail", error_code="not_resumable")

    edit(session, hold_and_fail)
    assert open_kinds(session) == ["error", "held"]
    edit(session, lambda transaction: transaction.move_session(end))
    assert open_kinds(session) == []


def test_rolled_back_change_raises_nothing() -> None:
    session = running_session("do it")
    row = change(session.prompts.get(), state="sending")

    def raise_error(transaction: SessionTransaction) -> None:
        transaction.move_prompt(row, "hold")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        edit(session, raise_error)
    assert AttentionItem.objects.count() == 0


def test_quoted_agent_text_is_shortened_and_redacted() -> None:
    journal = Journal()
    session = in_turn(journal)
    asks = journal.requests_permission("q1")
    asks["tool_call"] = {"title": f"curl -H 'Authorization: {GHOST}' " + "x" * 900}
    ingest(session, [asks])
    why = as_read(AttentionItem.objects.get(kind="permission")).why
    assert GHOST not in why and len(why) < 300


def test_raising_is_idempotent_by_key() -> None:
    session = make_session()
    notice = Notice(AttentionKind.ERROR, "error:one", "What", "Why", "Next")
    with session_transaction(session.id) as transaction:
        assert [raise_item(transaction, notice), raise_item(transaction, notice)] == [True, False]
    assert attention_events(session) == [("error", "raised")]
