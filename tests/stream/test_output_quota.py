"""Output beyond the limit of a turn or session is left out, which is shown; what people wait for still arrives."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.kernel.database_threads import DatabaseThread
from sessions_app.kernel.services.errors import Conflict
from sessions_app.kernel.transactions import ERROR_LIMIT
from sessions_app.models import (
    AttentionItem,
    Intent,
    IntentKind,
    PermissionRequest,
    SessionEvent,
    TaskSession,
    Turn,
    session_transaction,
)
from sessions_app.sessions.services.status import session_status
from sessions_app.stream.ingest.writer import JournalWriter
from sessions_app.stream.services import allow_more_output
from sessions_app.turns.agent_turns import sessions_with_quiet_turns
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import MINE, conversation, fresh, running_session

pytestmark = pytest.mark.django_db(transaction=True)
LIMIT = 100_000
BIG = "x" * 30_000


@pytest.fixture(autouse=True)
def limits(settings: Any) -> Any:
    settings.KANDEV_TURN_OUTPUT_LIMIT = LIMIT
    settings.KANDEV_SESSION_OUTPUT_LIMIT = 10 * LIMIT
    return settings


@pytest.fixture
def member() -> User:
    return User.objects.create_user("ada")


def begun(session: TaskSession, journal: Journal, message_id: str = "m1") -> None:
    ingest(session, journal.turn_begins(message_id))


def texts_of(session: TaskSession, role: str = "status") -> list[str]:
    return [text for found, text, *_ in conversation(session) if found == role]


def execution_of(session: TaskSession) -> ExecutorRunning:
    return ExecutorRunning.objects.get(session=session)


def stored_text(session: TaskSession) -> int:
    return sum(map(len, texts_of(session, "agent")))


def test_output_beyond_the_limit_of_a_turn_is_left_out_and_counted() -> None:
    session, journal = running_session(), Journal()
    begun(session, journal)
    for _ in range(10):
        ingest(session, journal.says(BIG))
    assert LIMIT - len(BIG) < stored_text(session) <= LIMIT
    (notice,) = texts_of(session)
    assert "has reached the limit" in notice and "KANDEV_TURN_OUTPUT_LIMIT" in notice
    assert session_status(fresh(session))["output_limit"] == "turn"
    assert AttentionItem.objects.get(kind="output_limit").resolved_at is None
    ingest(session, [journal.completes("m1")])
    assert any("bytes of the agent’s output were left out here" in text for text in texts_of(session))
    left_out = SessionEvent.objects.get(session=session, name="session.output.left_out").payload["bytes"]
    assert 10 * len(BIG) <= left_out + stored_text(session) + 10 * 512
    assert Turn.objects.get(session=session).state == "completed"


def test_limited_turn_still_delivers_permissions_and_its_end() -> None:
    session, journal = running_session(), Journal()
    begun(session, journal)
    ingest(session, journal.says(*[BIG] * 10))
    ingest(session, [journal.tool("t1"), journal.requests_permission("p1")])
    assert PermissionRequest.objects.get(id="p1").state == "pending"
    ingest(session, [journal.line("permission.resolved", permission_id="p1", option_id="yes")])
    ingest(session, [journal.line("turn.cancelled", message_id="m1", stop_reason="cancelled")])
    assert Turn.objects.get(session=session).state == "cancelled"
    assert not [role for role, *_ in conversation(session) if role == "tool"]


def test_short_lines_that_write_much_count_with_what_they_write() -> None:
    session, journal = running_session(), Journal()
    begun(session, journal)
    ingest(session, [journal.tool("call", raw_input=BIG)])
    ingest(session, [journal.tool("call", status="completed") for _ in range(50)])
    assert execution_of(session).output_limit == "turn"
    assert sum(len(str(event.payload)) for event in SessionEvent.objects.filter(session=session)) < 2 * LIMIT


def test_update_of_a_tool_counts_once_for_each_open_request_that_shows_it() -> None:
    session, journal = running_session(), Journal()
    begun(session, journal)
    ingest(session, [journal.tool("call", raw_input="x" * 1_000)])
    for number in range(10):
        request = journal.requests_permission(f"p{number}")
        ingest(session, [{**request, "tool_call": {"tool_call_id": "call"}}])
    before = execution_of(session).turn_output_bytes
    ingest(session, [journal.tool("call", title="x")])
    assert execution_of(session).turn_output_bytes - before > 10_000


def test_next_turn_is_stored_again() -> None:
    session, journal = running_session(), Journal()
    begun(session, journal)
    ingest(session, journal.says(*[BIG] * 10))
    ingest(session, [journal.completes("m1")])
    begun(session, journal, "m2")
    ingest(session, journal.says("after"))
    assert texts_of(session, "agent")[-1] == "after"
    assert AttentionItem.objects.get(kind="output_limit").resolution == "next_turn"


def test_user_allows_as_much_output_again(member: User) -> None:
    session, journal = running_session(), Journal()
    begun(session, journal)
    ingest(session, journal.says(*[BIG] * 10))
    before = stored_text(session)
    allow_more_output(session.id, member)
    ingest(session, journal.says("after"))
    assert texts_of(session, "agent")[-1] == "after"
    assert "were left out here" in texts_of(session)[-1]
    assert AttentionItem.objects.get(kind="output_limit").resolution == "allowed"
    for _ in range(10):
        ingest(session, journal.says(BIG))
    assert before + LIMIT - 2 * len(BIG) < stored_text(session) <= before + LIMIT + len(BIG)
    assert execution_of(session).output_limit == "turn"


def test_more_output_is_refused_while_no_limit_is_reached(member: User) -> None:
    with pytest.raises(Conflict):
        allow_more_output(running_session().id, member)


def test_limit_of_a_session_holds_over_its_turns(limits: Any) -> None:
    limits.KANDEV_SESSION_OUTPUT_LIMIT = 2 * LIMIT
    session, journal = running_session(), Journal()
    for number in range(6):
        begun(session, journal, f"m{number}")
        ingest(session, [*journal.says(BIG, BIG), journal.completes(f"m{number}")])
    assert stored_text(session) <= 2 * LIMIT
    assert execution_of(session).output_limit == "session"
    assert Turn.objects.filter(session=session, state="completed").count() == 6


def test_lines_that_arrive_twice_count_once() -> None:
    session, journal = running_session(), Journal()
    begun(session, journal)
    lines = journal.says(BIG)
    for _ in range(10):
        ingest(session, lines)
    assert execution_of(session).output_limit == ""
    assert execution_of(session).turn_output_bytes < 2 * len(BIG)


def test_agent_that_floods_with_requests_is_stopped() -> None:
    session, journal = running_session(), Journal()
    begun(session, journal)
    for number in range(10):
        request: dict[str, Any] = journal.requests_permission(f"p{number}")
        ingest(session, [{**request, "tool_call": {"title": "rm", "raw_input": BIG}}])
    assert Intent.objects.get(session=session, kind=IntentKind.STOP).payload == {"reason": "output_limit"}
    assert fresh(session).desired_state == "stopped"
    assert "The agent was stopped" in "".join(texts_of(session))


def test_no_limit_means_no_limit(limits: Any) -> None:
    limits.KANDEV_TURN_OUTPUT_LIMIT = limits.KANDEV_SESSION_OUTPUT_LIMIT = 0
    session, journal = running_session(), Journal()
    begun(session, journal)
    ingest(session, journal.says(*[BIG] * 50))
    assert stored_text(session) == 50 * len(BIG)


def test_limit_holds_in_transactions_of_many_sessions() -> None:
    sessions = [running_session() for _ in range(3)]
    thread = DatabaseThread("writer")

    async def write(rounds: int) -> None:
        writer = JournalWriter(thread)
        journals = [Journal() for _ in sessions]
        for _ in range(rounds):
            pairs = zip(sessions, journals, strict=True)
            await asyncio.gather(*(writer(each.id, MINE, journal.says(BIG), None) for each, journal in pairs))

    try:
        asyncio.run(write(8))
    finally:
        thread.close()
    assert all(stored_text(session) <= LIMIT for session in sessions)
    assert all(execution_of(session).output_left_out > LIMIT for session in sessions)


def test_error_of_an_agent_is_stored_shortened_in_the_rows_that_every_transaction_reads() -> None:
    session, journal = running_session(), Journal()
    begun(session, journal)
    message = "The conversation is another one. " + "x" * 50_000
    ingest(session, [journal.line("turn.failed", message_id="m1", code="context_mismatch", message=message)])
    assert fresh(session).state == "ERROR"
    assert fresh(session).error_message == message[:ERROR_LIMIT]


def test_error_of_an_execution_is_stored_shortened() -> None:
    session = running_session()
    with session_transaction(session.id) as transaction:
        transaction.move_executor("fail", error_code="x", error_message="y" * 50_000)
    assert execution_of(session).error_message == "y" * ERROR_LIMIT


def ended_at_its_limit() -> tuple[TaskSession, Journal]:
    """Return a session whose turn has reached its limit and ended a minute ago, by its journal."""
    session, journal = running_session(launch_id="launch"), Journal()
    begun(session, journal)
    for _ in range(5):
        ingest(session, journal.says(BIG))
    ingest(session, [journal.completes("m1")])
    journal.seq += 60
    return session, journal


def test_turn_that_the_agent_begins_itself_is_shown_and_has_room_of_its_own() -> None:
    session, journal = ended_at_its_limit()
    before = stored_text(session)
    ingest(session, journal.says(BIG))
    own = Turn.objects.get(session=session, origin="agent")
    assert own.ended_at is None
    assert stored_text(session) == before + len(BIG)
    assert execution_of(session).output_limit == ""
    resumed = SessionEvent.objects.get(session=session, name="session.output.resumed")
    assert resumed.payload["reason"] == "next_turn"
    for _ in range(5):
        ingest(session, journal.says(BIG))
    assert execution_of(session).output_limit == "turn"
    assert stored_text(session) <= before + LIMIT


def test_own_turn_whose_output_is_left_out_is_not_quiet() -> None:
    session, journal = ended_at_its_limit()
    for _ in range(5):
        ingest(session, journal.says(BIG))
    long_ago = timezone.now() - timedelta(hours=1)
    TaskSession.objects.filter(id=session.id).update(updated_at=long_ago)
    assert execution_of(session).output_left_out
    assert sessions_with_quiet_turns([session.id]) == []
    ExecutorRunning.objects.filter(session=session).update(updated_at=long_ago)
    assert sessions_with_quiet_turns([session.id]) == [session.id]


def test_limit_of_the_session_holds_for_turns_that_the_agent_begins(limits: Any) -> None:
    limits.KANDEV_SESSION_OUTPUT_LIMIT = LIMIT
    limits.KANDEV_TURN_OUTPUT_LIMIT = 0
    session, journal = ended_at_its_limit()
    assert execution_of(session).output_limit == "session"
    before = stored_text(session)
    ingest(session, journal.says(BIG))
    assert stored_text(session) == before
    assert Turn.objects.filter(session=session).count() == 1
    ingest(session, [journal.requests_permission("p1")])
    assert Turn.objects.filter(session=session, origin="agent", state="waiting").exists()
