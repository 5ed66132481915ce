"""An outage of the provider that outlasts the retries suspends the session, which tries again at growing intervals."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from executors_app.wire.protocol import JournalKind
from sessions_app.models import AttentionItem, Prompt, Suspension, TaskSession
from sessions_app.sessions.rules.situations import situation
from sessions_app.sessions.services.intents import request_cancel
from sessions_app.sessions.services.status import load_status, read_session
from sessions_app.supervisor import leases
from sessions_app.suspensions import services
from sessions_app.suspensions.models import open_suspension
from sessions_app.suspensions.rules.suspension import FIRST_PAUSE, LEAST_SPREAD, MOST_TRIES, TRY_DELAYS
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import MINE, fresh, last_payload, make_user, prompt_states, running_session
from tests.suspensions.test_services import claimed, end_limit, queue, reach_limit

pytestmark = pytest.mark.django_db(transaction=True)
OVERLOADED = "API Error: 529 Overloaded"


@pytest.fixture(autouse=True)
def one_retry(settings: Any) -> None:
    """Let every turn be retried once."""
    settings.KANDEV_TURN_RETRIES = 1


def fail(
    session: TaskSession,
    journal: Journal,
    message_id: str,
    message: str = OVERLOADED,
    code: str = "agent_error",
    *,
    tool: bool = False,
) -> TaskSession:
    """Let the turn of a prompt fail that was retried already."""
    defaults = {"text": f"do {message_id}", "state": "sending", "attempt": 1}
    Prompt.objects.get_or_create(session=session, message_id=message_id, defaults=defaults)
    begin = journal.turn_begins(message_id)
    used = [journal.tool("t1", status="completed")] if tool else []
    error = {"code": code, "message": message, "ts": timezone.now().timestamp()}
    ingest(session, [*begin, *used, journal.line(JournalKind.TURN_FAILED, message_id=message_id, **error)])
    return fresh(session)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (OVERLOADED, "provider_overloaded"),
        ("unexpected status 502 Bad Gateway", "provider_overloaded"),
        ('Internal error ({"error": {"code": 503, "message": "The model is overloaded."}})', "provider_overloaded"),
        ('Internal error ({"details": "connect ECONNREFUSED 127.0.0.1:443"})', "provider_unreachable"),
        ("getaddrinfo ENOTFOUND api.example.org", "provider_unreachable"),
        ("[Errno -3] Temporary failure in name resolution", "provider_unreachable"),
        ("the agent's program exited with 1: TypeError: fetch failed", "provider_unreachable"),
        ("API Error (Connection error.)", "provider_connection_lost"),
        ("429 Too Many Requests", "provider_rate_limited"),
    ],
)
def test_outage_that_outlasts_the_retries_suspends_the_session(message: str, reason: str) -> None:
    session = fail(running_session(), Journal(), "p1", message)
    row = Suspension.objects.get()
    assert (row.reason, row.resets_at) == (reason, None)
    assert row.wakes_at is not None
    earliest = row.began_at + TRY_DELAYS[0] + FIRST_PAUSE
    assert earliest <= row.wakes_at <= earliest + LEAST_SPREAD
    assert session.work_state == "idle"
    suspended = last_payload(session, "session.suspended")
    assert (suspended["reason"], suspended["tries_at"]) == (reason, row.wakes_at.isoformat())
    item = AttentionItem.objects.get(resolved_at=None)
    assert item.kind == "suspended"
    assert "is tried again" in item.why
    status = load_status(session)
    assert status.suspension is not None
    assert status.suspension["continuation"] == "again"


def test_first_failures_are_retried_and_suspend_nothing() -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="do p1", state="sending")
    fail(session, journal, "p1")
    assert open_suspension(session.id) is None
    assert session.prompts.filter(kind="retry", state="queued").exists()


@pytest.mark.parametrize(
    ("message", "code"),
    [("API Error: 401 invalid x-api-key", "agent_error"), ("Not logged in", "auth_required"), ("Odd", "agent_error")],
)
def test_other_errors_are_no_outage(message: str, code: str) -> None:
    session = fail(running_session(), Journal(), "p1", message, code)
    assert open_suspension(session.id) is None


@pytest.mark.parametrize("message", ["Credit balance is too low", "Error: insufficient_quota"])
def test_account_without_credit_waits_for_a_person(settings: Any, message: str) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 9
    session = fail(running_session(), Journal(), "p1", message)
    row = Suspension.objects.get()
    assert (row.reason, row.wakes_at) == ("credit_exhausted", None)
    assert session.runs.get().reason == "credit_exhausted"
    item = AttentionItem.objects.get(resolved_at=None)
    assert "no credit left" in item.what
    assert "Add credit" in item.next_step
    assert services.go_on_now(session.id, make_user()).prompt is not None


def test_each_failed_try_is_followed_by_a_later_one_until_a_person_decides() -> None:
    session, journal = running_session(), Journal()
    fail(session, journal, "p1")
    delays = []
    for _ in range(MOST_TRIES):
        row = Suspension.objects.get(ended_at=None)
        assert row.wakes_at is not None
        delays.append((row.wakes_at - row.began_at) // timedelta(minutes=1))
        end_limit(session)
        message_id = claimed(session)
        assert message_id == f"limit:{row.id}"
        fail(session, journal, message_id)
        assert not session.prompts.filter(state="queued").exists(), "no quick retries in between"
    assert delays[:6] == [5, 10, 20, 40, 60, 60]
    row = Suspension.objects.get(ended_at=None)
    assert (row.windows, row.wakes_at) == (MOST_TRIES, None)
    assert sum(delays) > 24 * 60
    item = AttentionItem.objects.get(resolved_at=None)
    assert "not tried again automatically" in item.why
    texts = set(session.prompts.values_list("text", flat=True))
    assert texts == {"do p1"}


def test_try_that_succeeds_ends_the_series() -> None:
    session, journal = running_session(), Journal()
    fail(session, journal, "p1")
    queue(session, "next")
    assert claimed(session) is None, "what follows waits for the turn before it"
    end_limit(session)
    message_id = str(claimed(session))
    assert message_id.startswith("limit:")
    ingest(session, [*journal.turn_begins(message_id), *journal.says("done"), journal.completes(message_id)])
    assert open_suspension(session.id) is None
    assert claimed(session) == "p2"


def test_try_asks_an_agent_that_has_worked_to_look_first() -> None:
    session = fail(running_session(), Journal(), "p1", tool=True)
    end_limit(session)
    text = Prompt.objects.get(message_id=claimed(session)).text
    assert "provider is overloaded" in text
    assert "do p1" in text


def test_cancel_ends_the_tries() -> None:
    session = fail(running_session(), Journal(), "p1")
    assert request_cancel(session.id, make_user())
    end_limit(session)
    assert prompt_states(session) == {"p1": "done"}


def test_nothing_is_tried_where_no_turn_is_retried(settings: Any) -> None:
    settings.KANDEV_TURN_RETRIES = 0
    session = fail(running_session(), Journal(), "p1")
    assert Suspension.objects.get().wakes_at is None
    assert services.next_wake() is None
    assert services.go_on_now(session.id, make_user()).prompt is not None


def test_outage_that_names_its_end_is_tried_then() -> None:
    session = fail(running_session(), Journal(), "p1", "Too many requests, try again in 30 minutes")
    row = Suspension.objects.get(session=session)
    assert row.resets_at is not None
    assert abs(row.resets_at - timezone.now() - timedelta(minutes=30)) < timedelta(minutes=1)
    assert row.wakes_at is not None
    assert row.wakes_at > row.resets_at


def test_no_time_of_a_try_is_told_where_nothing_is_tried(settings: Any) -> None:
    settings.KANDEV_TURN_RETRIES = 0
    fail(running_session(), Journal(), "p1", "Too many requests, try again in 30 minutes")
    row = Suspension.objects.get()
    assert row.resets_at is not None
    assert row.wakes_at is None
    assert "not tried again automatically" in AttentionItem.objects.get(resolved_at=None).why


def test_limits_and_outages_are_counted_apart(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session, journal = running_session(), Journal()
    reach_limit(session, journal, "p1", tool=True)
    end_limit(session)
    first = str(claimed(session))
    Prompt.objects.filter(message_id=first).update(attempt=1)
    fail(session, journal, first)
    assert Suspension.objects.get(ended_at=None).windows == 0
    end_limit(session)
    second = str(claimed(session))
    reach_limit(session, journal, second, tool=True)
    assert Suspension.objects.get(ended_at=None).windows == 1
    end_limit(session)
    assert claimed(session) is None


def test_provider_that_asks_for_a_second_is_not_tried_every_second() -> None:
    session = fail(running_session(), Journal(), "p1", "429 Too Many Requests, try again in 1 second")
    row = Suspension.objects.get(session=session)
    assert row.wakes_at is not None
    assert row.wakes_at >= row.began_at + TRY_DELAYS[0], "else all tries are made within minutes"


def test_unasked_retries_are_promised_nowhere_without_retries(settings: Any) -> None:
    settings.KANDEV_TURN_RETRIES = 0
    leases.register_supervisor(MINE.owner)
    leases.mark_first_sweep_done(MINE.owner)
    session = fail(running_session(), Journal(), "p1")
    told = situation(read_session(session).facts)
    assert "not tried again automatically" in told.next_step
    assert "retried" not in AttentionItem.objects.get(resolved_at=None).why
