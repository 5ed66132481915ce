"""Work that an agent begins itself during a suspension, and limits that it reports in such work."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as configured
from django.utils import timezone

from executors_app.wire.protocol import JournalKind
from sessions_app.kernel.services.errors import Conflict
from sessions_app.models import AttentionItem, Prompt, Suspension, TaskSession
from sessions_app.sessions.services.intents import request_cancel
from sessions_app.sessions.services.status import load_status
from sessions_app.suspensions import services
from sessions_app.suspensions.models import open_suspension
from sessions_app.turns.agent_turns import end_quiet_turns
from tests.supervisor.journals import Journal, Line, ingest
from tests.supervisor.rows import MINE, change, fresh, last_payload, make_user, running_session
from tests.suspensions.test_open_waits import wake_up
from tests.suspensions.test_services import LIMIT, claimed, end_limit, queue, reach_limit

pytestmark = pytest.mark.django_db(transaction=True)
LATER = 60
"""Seconds after the limit at which the agent begins to work itself."""


def own_work(journal: Journal, text: str, *, tool: bool = False, after: int = LATER, ends: bool = True) -> list[Line]:
    """Return the lines of work that an agent begins itself ``after`` so many seconds, with its announced end."""
    at = timezone.now().timestamp() + after
    used = [{**journal.tool("own", status="completed"), "ts": at}] if tool else []
    said = journal.line(JournalKind.MESSAGE_AGENT, text=text, ts=at + 1)
    end = [journal.line(JournalKind.AGENT_TURN_ENDED, ts=at + 2)] if ends else []
    return [*used, said, *end]


def suspended_with_own_work(text: str = "The build has ended.", **fields: Any) -> tuple[TaskSession, Journal]:
    """Return a suspended session whose agent has then worked on its own."""
    session, journal = running_session(**fields), Journal()
    reach_limit(session, journal, "p1")
    ingest(session, own_work(journal, text))
    return fresh(session), journal


def test_go_on_continues_the_turn_although_the_agent_has_worked_on_its_own_since() -> None:
    session, _ = suspended_with_own_work()
    found = services.go_on_now(session.id, make_user())
    assert found.continuation == "continue", "the agent may have begun with it, so it is told to look first"
    assert found.prompt is not None
    assert "do p1" in found.prompt.text
    assert claimed(session) == found.prompt.message_id


def test_turn_is_offered_after_the_end_although_the_agent_has_worked_on_its_own() -> None:
    session, _ = suspended_with_own_work()
    end_limit(session)
    cut_off = load_status(fresh(session)).cut_off_turn
    assert cut_off is not None
    assert cut_off["message_id"] == "p1"
    assert cut_off["has_worked"] is True, "the page offers what is done then"
    assert services.go_on_now(session.id, make_user()).continuation == "continue"
    with pytest.raises(Conflict, match="Send a prompt instead"):
        services.go_on_now(session.id, make_user())


def test_nothing_is_offered_while_the_agent_works_on_its_own() -> None:
    session, journal = running_session(), Journal()
    reach_limit(session, journal, "p1")
    end_limit(session)
    ingest(session, own_work(journal, "The build has ended.", ends=False))
    assert load_status(fresh(session)).cut_off_turn is None


def test_agent_that_has_worked_on_its_own_since_is_not_continued_automatically(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session, _ = suspended_with_own_work()
    status = load_status(session)
    assert status.suspension is not None
    assert status.suspension["continuation"] == "nothing"
    end_limit(session)
    assert last_payload(session, "session.suspension.ended")["continuation"] == "nothing"
    assert claimed(session) is None, "it may have done the work already"


def test_agent_that_said_that_it_goes_on_is_not_offered_once_it_has() -> None:
    session, journal = running_session(), Journal()
    reach_limit(session, journal, "p1", f"{LIMIT}\nClaude Code will continue automatically shortly.")
    ingest(session, own_work(journal, "I go on. Done."))
    assert open_suspension(session.id) is None
    assert load_status(fresh(session)).cut_off_turn is None


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "quiet"])
def test_limit_in_work_of_the_agent_itself_suspends_the_session(announced: bool) -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="do p1", state="sending")
    ingest(session, [*journal.turn_begins("p1"), *journal.says("started"), journal.completes("p1")])
    ingest(session, own_work(journal, LIMIT, ends=announced))
    if not announced:
        change(session, updated_at=timezone.now() - timedelta(seconds=2 * configured.KANDEV_AGENT_TURN_QUIET))
        assert end_quiet_turns({session.id: MINE}) == 1
    row = Suspension.objects.get(ended_at=None)
    assert (row.reason, row.message, row.resets_at is not None) == ("usage_limit", LIMIT, True)
    turn = session.runs.get(origin="agent")
    assert (turn.state, turn.reason) == ("failed", "usage_limit")
    assert last_payload(session, "session.run.failed")["error_message"] == LIMIT
    assert [item.kind for item in AttentionItem.objects.filter(resolved_at=None)] == ["suspended"]
    queue(session, "next")
    assert claimed(session) is None
    end_limit(session)
    assert claimed(session) == "p2"


def test_end_of_a_limit_in_work_of_the_agent_itself_offers_no_turn_that_nobody_prompted(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="do p1", state="sending")
    ingest(session, [*journal.turn_begins("p1"), *journal.says("started"), journal.completes("p1")])
    ingest(session, own_work(journal, LIMIT))
    assert "not continued automatically" in wake_up()
    end_limit(session)
    assert load_status(fresh(session)).cut_off_turn is None
    item = AttentionItem.objects.get(resolved_at=None)
    assert item.kind == "idle"
    assert "prompt again" not in item.next_step


def test_limit_that_is_reported_again_unasked_keeps_the_turn_that_goes_on(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session, journal = running_session(), Journal()
    reach_limit(session, journal, "p1", tool=True)
    first = Suspension.objects.get()
    ingest(session, own_work(journal, LIMIT))
    row = Suspension.objects.get(ended_at=None)
    assert row.id != first.id
    assert (row.run_id, row.windows, row.has_worked) == (first.run_id, 0, True)
    assert [item.kind for item in AttentionItem.objects.filter(resolved_at=None)] == ["suspended"]
    end_limit(session)
    assert last_payload(session, "session.suspension.ended")["continuation"] == "continue"
    assert claimed(session) == f"limit:{row.id}"


def test_end_of_a_limit_that_was_reported_again_offers_the_turn() -> None:
    session, journal = running_session(), Journal()
    reach_limit(session, journal, "p1", tool=True)
    ingest(session, own_work(journal, LIMIT))
    end_limit(session)
    item = AttentionItem.objects.get(resolved_at=None)
    assert "continue the turn" in item.next_step
    cut_off = load_status(fresh(session)).cut_off_turn
    assert cut_off is not None
    assert cut_off["message_id"] == "p1"
    assert services.go_on_now(session.id, make_user()).continuation == "continue"


def test_cancel_outlives_a_limit_that_is_reported_again_unasked(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session, journal = running_session(), Journal()
    reach_limit(session, journal, "p1", tool=True)
    assert request_cancel(session.id, make_user())
    ingest(session, own_work(journal, LIMIT))
    end_limit(session)
    assert claimed(session) is None


@pytest.mark.parametrize(
    ("text", "tool"),
    [("I have read that you've hit your session limit, and fixed the text.", False), (LIMIT, True)],
    ids=["another text", "with a tool"],
)
def test_other_work_of_the_agent_itself_is_completed(text: str, tool: bool) -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="do p1", state="sending")
    ingest(session, [*journal.turn_begins("p1"), *journal.says("started"), journal.completes("p1")])
    ingest(session, own_work(journal, text, tool=tool))
    assert session.runs.get(origin="agent").state == "completed"
    assert open_suspension(session.id) is None


def test_turns_in_one_batch_are_told_apart() -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="do p1", state="sending")
    first = [*journal.turn_begins("p1"), *journal.says("I have begun."), journal.completes("p1")]
    ingest(session, [*first, *own_work(journal, LIMIT), *own_work(journal, "Done.", after=2 * LATER)])
    states = list(session.runs.order_by("started_at").values_list("state", flat=True))
    assert states == ["completed", "failed", "completed"]


def test_stopped_session_is_not_suspended_by_work_of_the_agent_itself() -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="do p1", state="sending")
    ingest(session, [*journal.turn_begins("p1"), *journal.says("started"), journal.completes("p1")])
    change(session, desired_state="stopped")
    ingest(session, own_work(journal, LIMIT))
    assert open_suspension(session.id) is None
