"""The agent's settings in the log, and changes sent to the agent: once, in order, and never lost."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.wire.errors import AgentctlRefused
from executors_app.wire.protocol import JournalKind
from sessions_app.agents.models import changes_to_start_with
from sessions_app.agents.services.agent_settings import order_waiting_changes, request_setting
from sessions_app.models import AgentSettings, Intent, TaskSession, session_transaction
from sessions_app.stream.ingest.batches import ingest_batch
from sessions_app.supervisor import dispatcher
from tests.supervisor.journals import Journal, Line, ingest
from tests.supervisor.rows import MINE, change, last_payload, make_user, names, open_orders, running_session

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]

CHOICES = [{"value": "act", "name": "Act"}, {"value": "plan", "name": "Plan"}]


def settings_line(journal: Journal, mode: str = "act", reason: str = "opened", **more: Any) -> Line:
    settings = [
        {"id": "mode", "name": "Mode", "category": "mode", "type": "select", "value": mode, "choices": CHOICES},
        {"id": "fast", "name": "Fast", "type": "boolean", "value": False},
    ]
    return journal.line(JournalKind.AGENT_SETTINGS, settings=settings, reason=reason, **more)


@pytest.fixture
def journal() -> Journal:
    return Journal()


@pytest.fixture
def session(journal: Journal) -> TaskSession:
    running = running_session()
    ingest(running, [settings_line(journal)])
    return running


def row_of(session: TaskSession) -> AgentSettings:
    return AgentSettings.objects.get(session=session)


def ask(session: TaskSession, value: str | bool = "plan", setting: str = "mode") -> str:
    """Request a change and return its id."""
    request_setting(session.id, make_user(), setting, value)
    return str(row_of(session).change_of(setting)["id"])


def outcome_line(journal: Journal, change_id: str, reason: str = "") -> Line:
    kind = JournalKind.SETTING_REFUSED if reason else JournalKind.SETTING_APPLIED
    more = {"code": "setting_refused", "reason": reason} if reason else {}
    return journal.line(kind, change_id=change_id, setting="mode", value="plan", **more)


def test_last_report_of_a_batch_is_stored_with_one_event(session: TaskSession, journal: Journal) -> None:
    ingest(session, [settings_line(journal, mode, "agent") for mode in ("plan", "act", "plan")])
    assert row_of(session).settings[0]["value"] == "plan"
    assert names(session).count("session.agent.settings") == 2
    assert last_payload(session, "session.agent.settings") == {
        "values": {"mode": "plan", "fast": False},
        "reason": "agent",
    }


def test_report_older_than_the_stored_one_changes_nothing(session: TaskSession, journal: Journal) -> None:
    journal.epoch = "epoch-2"
    ingest(session, [settings_line(journal, "plan", "agent", ts=1.0)])
    assert row_of(session).settings[0]["value"] == "act"


def test_repeated_batch_changes_nothing(session: TaskSession, journal: Journal) -> None:
    lines = [settings_line(journal, "plan", "agent"), outcome_line(journal, ask(session))]
    before = None
    for _ in range(2):
        ingest(session, lines)
        after = (names(session), row_of(session).chosen)
        assert before in (None, after)
        before = after


@pytest.mark.parametrize("value", [None, "text", [1, {"id": 7}, {"id": "x", "type": "select", "choices": [[]]}]])
def test_malformed_report_leaves_no_settings(session: TaskSession, journal: Journal, value: Any) -> None:
    ingest(session, [journal.line(JournalKind.AGENT_SETTINGS, settings=value, reason={})])
    assert row_of(session).settings == []


def test_hostile_texts_and_counts_are_bounded(session: TaskSession, journal: Journal) -> None:
    many = [{"name": f"c{number}", "description": "x\x00\u202e" * 5000} for number in range(5000)]
    ingest(session, [journal.line(JournalKind.AGENT_COMMANDS, commands=many)])
    ingest(session, [journal.line(JournalKind.AGENT_TITLE, title="../../etc\n" * 1000)])
    row = row_of(session)
    assert len(row.commands) == 200
    assert max(len(each["description"]) for each in row.commands) <= 300
    assert len(row.title) <= 200
    assert row.title.isprintable()


def test_running_agent_gets_the_change_as_an_intent(session: TaskSession) -> None:
    change_id = ask(session)
    assert open_orders(session) == [("setting", {"change_id": change_id, "setting": "mode", "value": "plan"})]
    assert last_payload(session, "session.setting.requested")["by"] == "ada"


def test_change_without_an_agent_waits_for_the_next_start(session: TaskSession) -> None:
    change(session, launch_id="")
    change_id = ask(session)
    assert open_orders(session) == []
    assert changes_to_start_with(session) == [{"change_id": change_id, "setting": "mode", "value": "plan"}]


def test_change_asked_for_during_a_start_is_ordered_after_it(session: TaskSession) -> None:
    change(session, launch_id="")
    change_id = ask(session)
    for _ in range(2):
        with session_transaction(session.id) as transaction:
            order_waiting_changes(transaction)
    assert [payload["change_id"] for _, payload in open_orders(session)] == [change_id]


def test_value_that_the_agent_has_is_not_ordered(session: TaskSession) -> None:
    request_setting(session.id, make_user(), "mode", "act")
    assert open_orders(session) == []


def test_applied_change_is_applied_again_at_the_next_start(session: TaskSession, journal: Journal) -> None:
    change_id = ask(session)
    ingest(session, [settings_line(journal, "plan", "asked"), outcome_line(journal, change_id)])
    assert row_of(session).change_of("mode")["state"] == "applied"
    again = [{"change_id": f"kept-{change_id}", "setting": "mode", "value": "plan"}]
    assert changes_to_start_with(session) == again
    ingest(session, [settings_line(journal, "act", "opened")])
    assert changes_to_start_with(session) == again


def test_choice_follows_a_change_of_the_agent_itself(session: TaskSession, journal: Journal) -> None:
    change_id = ask(session)
    ingest(session, [settings_line(journal, "plan", "asked"), outcome_line(journal, change_id)])
    ingest(session, [settings_line(journal, "act", "agent")])
    assert [each["value"] for each in changes_to_start_with(session)] == ["act"]


def test_refused_change_keeps_its_reason_and_is_not_tried_again(session: TaskSession, journal: Journal) -> None:
    change_id = ask(session)
    ingest(session, [outcome_line(journal, change_id, "not on this plan")])
    found = row_of(session).change_of("mode")
    assert (found["state"], found["reason"]) == ("refused", "not on this plan")
    assert last_payload(session, "session.setting.refused")["reason"] == "not on this plan"
    assert changes_to_start_with(session) == []


def test_outcome_of_a_replaced_change_is_ignored(session: TaskSession, journal: Journal) -> None:
    first = ask(session)
    ask(session, "act")
    ingest(session, [outcome_line(journal, first)])
    assert row_of(session).change_of("mode")["state"] == "waiting"
    assert "session.setting.applied" not in names(session)


def test_choice_that_a_start_cannot_apply_again_is_reported_once(session: TaskSession, journal: Journal) -> None:
    change_id = ask(session)
    ingest(session, [outcome_line(journal, change_id)])
    ingest(session, [outcome_line(journal, f"kept-{change_id}", "gone")])
    assert row_of(session).change_of("mode")["state"] == "refused"
    assert names(session).count("session.setting.refused") == 1
    assert [each["value"] for each in changes_to_start_with(session)] == ["plan"]


def intent_of(session: TaskSession) -> Intent:
    return Intent.objects.filter(session=session, kind="setting").latest("created_at")


def test_replaced_change_is_not_sent(session: TaskSession) -> None:
    ask(session)
    first = intent_of(session)
    ask(session, "act")
    assert dispatcher.outcome_without_sending(first, False) == "superseded"
    assert dispatcher.outcome_without_sending(intent_of(session), False) is None


def test_change_for_an_agent_that_is_gone_waits_for_its_next_start(session: TaskSession) -> None:
    change_id = ask(session)
    change(session, launch_id="")
    assert dispatcher.outcome_without_sending(intent_of(session), True) == "next_start"
    error = AgentctlRefused("no agent is running", status=409, refusal="not_running")
    assert dispatcher.handle_refusal(intent_of(session), error) == "next_start"
    assert [each["change_id"] for each in changes_to_start_with(session)] == [change_id]


def test_agentctl_without_settings_refuses_the_change(session: TaskSession) -> None:
    ask(session)
    error = AgentctlRefused("no such endpoint", status=404, refusal="not_found")
    dispatcher.handle_refusal(intent_of(session), error)
    assert row_of(session).change_of("mode")["code"] == "settings_unsupported"


def test_line_of_an_outcome_without_a_report_is_no_error(journal: Journal) -> None:
    running = running_session()
    ingest_batch(running.id, MINE, [outcome_line(journal, "nobody's")])
    assert not AgentSettings.objects.exists()
