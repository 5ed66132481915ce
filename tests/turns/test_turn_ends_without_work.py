"""A turn that ends in a refusal or without output is shown to the user, is not completed work, and proves nothing."""

from __future__ import annotations

from typing import Any

import pytest

from sessions_app.models import Prompt, TaskSession
from sessions_app.starts import agent_start
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import change, fresh, running_session, runs

pytestmark = pytest.mark.django_db

ENDS = {
    "turn_refused": {"stop_reason": "refusal", "output": True},
    "no_output": {"stop_reason": "end_turn", "output": False},
}


def turn(session: TaskSession, **end: Any) -> TaskSession:
    Prompt.objects.create(session=session, message_id="p1", text="go on", state="sending")
    journal = Journal()
    ingest(session, [*journal.turn_begins("p1"), journal.line("turn.completed", message_id="p1", **end)])
    return fresh(session)


@pytest.mark.parametrize("code", ENDS)
def test_empty_turn_is_shown_and_not_counted_as_completed(code: str) -> None:
    session = turn(change(running_session(), start_attempts=2), **ENDS[code])

    assert [state for _, state in runs(session)] == ["failed"]
    failed = session.events.get(name="session.run.failed").payload
    assert (failed["reason"], failed["error_code"]) == (code, code)
    payloads = [event.payload for event in session.events.filter(name="session.message.added")]
    assert [one["text"] for one in payloads if one["role"] == "status"] == [failed["error_message"]]
    assert not agent_start.load_conversation_facts(session.id).requests.completed_turns
    assert (session.state, session.start_attempts) == ("WAITING_FOR_INPUT", 2)
    assert session.prompts.get().state == "done"
    assert session.attention.get(kind="idle").what == "The agent’s turn has failed"


@pytest.mark.parametrize("code", ENDS)
def test_empty_turn_does_not_verify_a_pending_receipt(code: str) -> None:
    session = running_session()
    change(session.agent_profile, agent_type="codex_cli")
    receipt = session.receipts.create(kind="resumed", verified="pending", launch_id=session.launch_id)
    turn(session, **ENDS[code])
    assert fresh(receipt).verified == "pending"


@pytest.mark.parametrize(
    ("stop_reason", "text"),
    [
        ("max_turn_requests", "maximum number of requests"),
        ("max_tokens", "maximum length"),
        (None, "without saying why"),
        ("paused", "that Kandev does not know: paused"),
    ],
)
def test_early_end_without_output_is_explained_by_its_reason(stop_reason: str | None, text: str) -> None:
    session = turn(running_session(), stop_reason=stop_reason, output=False)
    failed = session.events.get(name="session.run.failed").payload
    assert failed["reason"] == "no_output"
    assert text in failed["error_message"]
    assert failed["error_message"].endswith("It has shown no output or action in this turn.")
    assert "lost its conversation" not in failed["error_message"]


def test_history_sent_with_a_refused_prompt_is_sent_again() -> None:
    session = running_session()
    evidence = {"injected_with": "p1"}
    session.receipts.create(kind="injected", verified="pending", launch_id=session.launch_id, evidence=evidence)
    session = turn(session, **ENDS["turn_refused"])
    assert session.inject_history


def test_turn_of_an_older_agentctl_still_counts_as_completed() -> None:
    session = turn(running_session(), stop_reason="end_turn")
    assert [state for _, state in runs(session)] == ["completed"]
