"""The keys of permissions: created with the request, shown again, and settled by whatever ends the request."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from executors_app.wire.protocol import JournalKind
from sessions_app.kernel.services.errors import TokenRevoked
from sessions_app.models import TaskSession, WaitKey
from sessions_app.permissions import key_renewal
from sessions_app.permissions.key_renewal import renew_permission_keys
from sessions_app.prompts import services as prompts
from sessions_app.sessions.services.status import session_status
from sessions_app.waits.expiry import expire_waits
from sessions_app.waits.rules.wait_keys import WaitKeyState
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import (
    answer,
    fresh,
    key_of,
    make_user,
    names,
    open_orders,
    permission_states,
    running_session,
)

pytestmark = pytest.mark.django_db


def asking_session(*permission_ids: str) -> tuple[TaskSession, Journal]:
    """Return a session whose agent waits for answers, and its journal."""
    session, journal = running_session(), Journal()
    ingest(
        session, [*journal.turn_begins("p1"), *(journal.requests_permission(one) for one in permission_ids or ("q1",))]
    )
    return session, journal


def token_states(session: TaskSession) -> dict[str, WaitKeyState]:
    return {token.wait_id: token.state(timezone.now()) for token in session.wait_keys.all()}


def status(session: TaskSession) -> Any:
    return session_status(fresh(session))["derived_status"]


def test_key_is_created_in_the_transaction_of_its_request() -> None:
    session, _ = asking_session("q1", "q2")
    run = session.runs.get()
    assert [(one.wait_id, one.run, one.expires_at) for one in session.wait_keys.all()] == [
        ("q1", run, None),
        ("q2", run, None),
    ]
    assert names(session).count("session.run.waiting") == 1
    assert status(session) == "waiting"


def test_repeated_request_keeps_its_key() -> None:
    session, journal = asking_session()
    before = key_of(session, "q1")
    ingest(session, [journal.requests_permission("q1")])
    assert key_of(session, "q1") == before
    assert session.wait_keys.count() == 1


def test_undelivered_answer_keeps_the_session_waiting() -> None:
    session, journal = asking_session()
    answer(session, "q1", "yes")
    assert (status(session), token_states(session)) == ("waiting", {"q1": WaitKeyState.CONSUMED})
    ingest(session, [journal.line(JournalKind.PERMISSION_RESOLVED, permission_id="q1", option_id="yes")])
    assert status(session) == "running"


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        (JournalKind.PERMISSION_CANCELLED, {"permission_id": "q1", "reason": "turn_cancelled"}, "turn_cancelled"),
        (JournalKind.PERMISSION_RESOLVED, {"permission_id": "q1", "option_id": "yes"}, "resolved"),
        (JournalKind.TURN_CANCELLED, {"message_id": "p1"}, "cancel"),
        (JournalKind.PROMPT_ACCEPTED, {"message_id": "p2", "text": "x"}, "superseded"),
        (JournalKind.AGENT_EXITED, {"message_id": "p1", "exit_code": 9}, "agent_gone"),
    ],
)
def test_key_is_revoked_when_a_permission_ends_without_our_answer(
    kind: JournalKind, body: dict[str, Any], reason: str
) -> None:
    session, journal = asking_session()
    key = key_of(session, "q1")
    ingest(session, [journal.line(kind, **body)])
    token = session.wait_keys.get()
    assert (token.state(timezone.now()), token.reason) == (WaitKeyState.REVOKED, reason)
    assert names(session).count("session.token.revoked") == 1
    with pytest.raises(TokenRevoked):
        answer(session, "q1", "yes")
    assert key_of(session, "q1") == key


def test_agent_death_expires_its_permission_in_the_same_line() -> None:
    session, journal = asking_session("q1", "q2")
    ingest(session, [journal.exits("p1")])
    assert permission_states(session) == {"q1": "expired", "q2": "expired"}
    assert names(session).count("session.permission.expired") == 2
    assert set(token_states(session).values()) == {WaitKeyState.REVOKED}
    assert status(session) == "interrupted_waiting"


def test_answer_to_a_dead_agent_is_reported_as_not_delivered() -> None:
    session, journal = asking_session()
    answer(session, "q1", "yes")
    ingest(session, [journal.exits("p1")])
    assert permission_states(session) == {"q1": "expired"}
    assert "session.permission.expired" in names(session)
    assert token_states(session) == {"q1": WaitKeyState.CONSUMED}


def test_new_prompt_revokes_the_keys_at_once() -> None:
    session, _ = asking_session("q1", "q2")
    answer(session, "q1", "yes")
    prompts.queue_prompt(session.id, "m2", "something else", make_user())
    assert token_states(session) == {"q1": WaitKeyState.CONSUMED, "q2": WaitKeyState.REVOKED}
    assert status(session) == "waiting", "the first answer is being delivered"


def test_request_outside_any_turn_also_has_a_key() -> None:
    session, journal = running_session(), Journal()
    ingest(session, [journal.requests_permission("q1")])
    assert answer(session, "q1", "yes").state == "pending"
    assert open_orders(session) == [("answer", {"permission_id": "q1", "option_id": "yes"})]


def test_permission_has_no_timeout_by_default(settings: Any) -> None:
    settings.KANDEV_PERMISSION_TIMEOUT = 60.0
    session, journal = asking_session()
    token = session.wait_keys.get()
    assert token.expires_at is not None
    assert timedelta(seconds=50) < token.expires_at - timezone.now() <= timedelta(seconds=60)
    WaitKey.objects.update(expires_at=timezone.now())
    assert [expire_waits(), expire_waits()] == [1, 0]
    assert open_orders(session) == [("answer", {"permission_id": "q1", "option_id": None})]
    assert "session.token.expired" in names(session)
    assert "session.run.interrupted" not in names(session)
    ingest(session, [journal.line(JournalKind.PERMISSION_CANCELLED, permission_id="q1", reason="timeout")])
    assert (permission_states(session), status(session)) == ({"q1": "cancelled"}, "running")


def test_open_permissions_survive_a_secret_key_rotation(settings: Any) -> None:
    session, _ = asking_session()
    shown = key_of(session, "q1")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new " * 20, [settings.SECRET_KEY]
    assert key_of(session, "q1") == shown
    assert renew_permission_keys() == (0, "")
    assert answer(session, "q1", "yes").state == "pending"


def test_permission_with_a_lost_key_gets_another(settings: Any) -> None:
    session, _ = asking_session()
    settings.SECRET_KEY = "new " * 20
    assert key_of(session, "q1") == ""
    assert [renew_permission_keys(), renew_permission_keys()] == [(1, ""), (0, "")]
    assert answer(session, "q1", "yes").state == "pending"
    assert sorted(token.reason for token in session.wait_keys.all()) == ["", "rotated"]


def test_keys_are_checked_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_renewal, "RENEWAL_BATCH", 2)
    session, _ = asking_session("q1", "q2", "q3")
    session.wait_keys.all().delete()
    assert renew_permission_keys() == (2, "q2")
    assert renew_permission_keys("q2") == (1, "")
    assert session.wait_keys.count() == 3


def test_checking_keys_reads_no_request(django_assert_num_queries: Any) -> None:
    asking_session("q1", "q2", "q3")
    with django_assert_num_queries(2) as queries:
        assert renew_permission_keys() == (0, "")
    assert "tool_call" not in "".join(query["sql"] for query in queries.captured_queries)


def test_permission_from_before_keys_existed_gets_one() -> None:
    session, _ = asking_session()
    session.wait_keys.all().delete()
    assert status(session) == "interrupted_waiting"
    assert renew_permission_keys() == (1, "")
    assert status(session) == "waiting"
    assert answer(session, "q1", "yes").state == "pending"


def test_settled_permission_gets_no_new_key() -> None:
    session, _ = asking_session("q1", "q2")
    answer(session, "q1", "yes")
    prompts.queue_prompt(session.id, "m2", "something else", make_user())
    assert renew_permission_keys() == (0, "")
