"""An agent that continues a cancelled turn is reported; nothing is stopped automatically."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from sessions_app.attention.rules.notices import AttentionKind
from sessions_app.models import AttentionItem, Intent, Prompt, TaskSession
from sessions_app.recovery.services.assessment import assess_session
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.status import session_status
from sessions_app.sessions.views.session_summary import banner_buttons
from sessions_app.turns.silence import report_ignored_cancels
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import MINE, fresh, last_payload, names, running_session, runs, shown_situation

pytestmark = pytest.mark.django_db
IGNORED = "session.run.cancel_ignored"


def session_with_cancel(journal: Journal, seconds_ago: float, outcome: str = "done") -> TaskSession:
    """Return a session in a turn whose cancel reached its agentctl that many seconds ago."""
    session = running_session(state="RUNNING", work_state="working")
    Prompt.objects.create(session=session, message_id="p1", text="build", state="sending")
    ingest(session, journal.turn_begins("p1"))
    intents.request_cancel(session.id, None)
    done_at = timezone.now() - timedelta(seconds=seconds_ago)
    Intent.objects.filter(session=session, kind="cancel").update(done_at=done_at, outcome=outcome)
    return fresh(session)


def report(session: TaskSession) -> int:
    return report_ignored_cancels({session.id: MINE})


def open_items(session: TaskSession) -> list[AttentionItem]:
    return list(AttentionItem.objects.filter(session=session, kind=AttentionKind.CANCEL_IGNORED, resolved_at=None))


def test_ignored_cancel_is_reported_once() -> None:
    session = session_with_cancel(Journal(), seconds_ago=31)
    assert [report(session), report(session)] == [1, 0]
    payload = last_payload(session, IGNORED)
    assert payload["message_id"] == "p1"
    assert session_status(fresh(session))["cancel_ignored_since"] == payload["since"]
    assert [item.key for item in open_items(session)] == [f"cancel_ignored:{payload['run_id']}"]
    assert runs(session) == [("p1", "running")], "the turn is not ended"


def test_page_offers_to_stop_the_agent() -> None:
    session = session_with_cancel(Journal(), seconds_ago=31)
    report(session)
    session = fresh(session)
    assessment = assess_session(session)
    shown = shown_situation(session)
    assert shown.text.startswith("The agent was asked to cancel its turn at ")
    assert [button.act for button in banner_buttons(shown, assessment)] == ["stop"]


@pytest.mark.parametrize(("seconds_ago", "outcome"), [(5, "done"), (31, "too_late"), (31, "not_running")])
def test_recent_or_undelivered_cancel_is_not_ignored(seconds_ago: float, outcome: str) -> None:
    session = session_with_cancel(Journal(), seconds_ago, outcome)
    assert report(session) == 0
    assert IGNORED not in names(session)


def test_end_of_the_turn_resolves_the_report() -> None:
    journal = Journal()
    session = session_with_cancel(journal, seconds_ago=31)
    report(session)
    ingest(session, [journal.line("turn.completed", message_id="p1", stop_reason="end_turn", output=True)])
    assert session_status(fresh(session))["cancel_ignored_since"] is None
    assert not open_items(session)
    assert "cancel_ignored" not in fresh(session).metadata


def test_cancel_of_an_earlier_turn_does_not_affect_the_next() -> None:
    journal = Journal()
    session = session_with_cancel(journal, seconds_ago=31)
    ingest(session, [journal.line("turn.cancelled", message_id="p1", stop_reason="cancelled")])
    Prompt.objects.create(session=session, message_id="p2", text="test", state="sending")
    ingest(session, journal.turn_begins("p2"))
    assert report(session) == 0


def test_session_of_another_supervisor_is_not_reported() -> None:
    session = session_with_cancel(Journal(), seconds_ago=31)
    assert report_ignored_cancels({}) == 0
    assert IGNORED not in names(session)
