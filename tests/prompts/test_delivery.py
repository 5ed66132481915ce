"""Prompts are sent to the agent one at a time, in order, and each at most once."""

from __future__ import annotations

from typing import Any

import pytest

from sessions_app.models import Prompt, TaskSession
from sessions_app.prompts import delivery
from sessions_app.prompts import services as prompts
from sessions_app.prompts.delivery import send_next_prompt
from sessions_app.sessions.services import intents
from sessions_app.stream.stream_news import News
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.recording_agentctl import RecordingAgentctl, recording_agentctl
from tests.supervisor.recording_runtime import RecordingListener, with_registry
from tests.supervisor.rows import NO_LEASE, change, fresh, make_user, names, prompt_states, running_session
from tests.waiting import eventually_async

pytestmark = pytest.mark.django_db(transaction=True)


def queue_prompts(session: TaskSession, *message_ids: str, **values: Any) -> TaskSession:
    for message_id in message_ids:
        Prompt.objects.create(session=session, message_id=message_id, text=f"do {message_id}", **values)
    return session


def send_prompts(session: TaskSession, agentctl: RecordingAgentctl, times: int = 1) -> list[str]:
    """Return the message ids that agentctl received in that many attempts of a new supervisor."""

    async def send(registry: ExecutionRegistry) -> None:
        assert await registry.open_stream(session.id) is not None
        for _ in range(times):
            await send_next_prompt(registry, session.id)

    before = len(agentctl.prompts)
    with_registry(send)
    return [body["message_id"] for body in agentctl.prompts[before:]]


def test_oldest_prompt_is_sent_and_the_next_waits_for_its_end() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1", "p2")
    with recording_agentctl(session) as agentctl:
        assert send_prompts(session, agentctl, times=3) == ["p1"]
    assert prompt_states(session) == {"p1": "sending", "p2": "queued"}
    assert names(session)[-1] == "session.prompt.sending"


def test_row_stores_execution_and_epoch_before_the_prompt_is_sent() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1")
    with recording_agentctl(session, [Journal("epoch-7").line("log")]) as agentctl:
        send_prompts(session, agentctl)
    row = Prompt.objects.get()
    assert (row.execution_id, row.journal_epoch) == (str(session.agent_execution_id), "epoch-7")


def test_continue_prompt_is_sent_before_the_others() -> None:
    session = queue_prompts(queue_prompts(running_session(execution=NO_LEASE), "p1"), "continue:1", kind="continue")
    with recording_agentctl(session) as agentctl:
        assert send_prompts(session, agentctl) == ["continue:1"]
        assert agentctl.prompts[0]["prompt_kind"] == "continue"


@pytest.mark.parametrize("has_lines", [True, False], ids=["with lines", "still empty"])
def test_undelivered_prompt_is_sent_again_only_to_the_same_journal(has_lines: bool) -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1", "p2")
    with recording_agentctl(session, [Journal("epoch-7").line("log")]) as agentctl:
        agentctl.refusal = "hangs up"
        assert send_prompts(session, agentctl) == ["p1"]
        assert prompt_states(session)["p1"] == "sending"
        agentctl.refusal = ""
        assert send_prompts(session, agentctl) == ["p1"]
        agentctl.epoch, agentctl.lines = "epoch-8", [Journal("epoch-8").line("log")] if has_lines else []
        assert send_prompts(session, agentctl) == ["p2"]
    assert prompt_states(session) == {"p1": "held", "p2": "sending"}


def test_prompt_refused_by_agentctl_is_queued_again() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1")
    with recording_agentctl(session) as agentctl:
        agentctl.refusal = "busy"
        assert send_prompts(session, agentctl) == ["p1"]
        assert prompt_states(session) == {"p1": "queued"}


@pytest.mark.parametrize("refusal", ["busy", "not_running", "journal_full", "hangs up"])
def test_failed_delivery_is_retried_after_a_delay_not_at_every_wakeup(refusal: str) -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1")
    with recording_agentctl(session) as agentctl:
        agentctl.refusal = refusal
        assert send_prompts(session, agentctl, times=5) == ["p1"]
    assert names(session).count("session.prompt.sending") == 1


@pytest.mark.parametrize("has_news", [False, True], ids=["output alone", "with other lines"])
def test_agent_output_alone_triggers_no_prompt_query(has_news: bool) -> None:
    session, journal = running_session(execution=NO_LEASE), Journal()
    lines = [*journal.says("Working"), journal.tool("t1"), *([journal.line("log")] if has_news else [])]
    listener = RecordingListener()

    async def attach(registry: ExecutionRegistry) -> None:
        assert await registry.open_stream(session.id) is not None

    with recording_agentctl(session, lines):
        with_registry(attach, listener)
    assert listener.news == ([News.WORK_DUE] if has_news else [])
    assert listener.woken == []


def test_session_is_woken_when_the_delay_is_over() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1")
    listener = RecordingListener()

    async def send(registry: ExecutionRegistry) -> None:
        assert await registry.open_stream(session.id) is not None
        for tries in (1, 2, 3):
            listener.woken.clear()
            await send_next_prompt(registry, session.id)
            await eventually_async(lambda: session.id in listener.woken, describe="the session is woken again")
            assert len(agentctl.prompts) == tries

    with recording_agentctl(session) as agentctl:
        agentctl.refusal = "busy"
        with_registry(send, listener)


@pytest.mark.parametrize("answer", ["hangs up", "nonsense"])
def test_only_a_refusal_by_agentctl_proves_nondelivery(answer: str) -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1")
    with recording_agentctl(session) as agentctl:
        agentctl.refusal = answer
        assert send_prompts(session, agentctl) == ["p1"]
    assert prompt_states(session) == {"p1": "sending"}


def test_missing_agent_is_reported_immediately_and_keeps_the_prompt() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1")
    listener = RecordingListener()

    async def send(registry: ExecutionRegistry) -> None:
        assert await registry.open_stream(session.id) is not None
        await send_next_prompt(registry, session.id)

    with recording_agentctl(session) as agentctl:
        agentctl.refusal = "not_running"
        with_registry(send, listener)
    assert listener.lost[:1] == [session.id]
    assert prompt_states(session) == {"p1": "queued"}


def test_duplicate_prompt_unknown_to_the_journal_is_held_and_blocks_nothing() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1", "p2")
    with recording_agentctl(session, [Journal("epoch-7").line("log")]) as agentctl:
        agentctl.refusal = "duplicate"
        assert send_prompts(session, agentctl) == ["p1"]
        assert prompt_states(session) == {"p1": "held", "p2": "queued"}
        agentctl.refusal = ""
        assert send_prompts(session, agentctl) == ["p2"]


def test_duplicate_prompt_is_not_held_before_the_whole_journal_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "REPORT_TIMEOUT", 0.1)
    session = queue_prompts(running_session(execution=NO_LEASE), "p1")
    with recording_agentctl(session, [Journal("epoch-7").line("log")]) as agentctl:
        unread = {**agentctl.report(), "journal": {"epoch": "epoch-7", "first_seq": 1, "last_seq": 2}}
        monkeypatch.setattr(agentctl, "report", lambda: unread)
        agentctl.refusal = "duplicate"
        assert send_prompts(session, agentctl) == ["p1"]
    assert prompt_states(session) == {"p1": "sending"}


@pytest.mark.parametrize("reason", ["a turn is open", "a start is ordered", "it was stopped", "no agent is up"])
def test_prompt_waits_while_the_session_cannot_take_it(reason: str) -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1")
    match reason:
        case "a turn is open":
            ingest(session, Journal().turn_begins("p0"), lease=None)
        case "a start is ordered":
            intents.ensure_start_intent(session, None, "auto")
        case "it was stopped":
            intents.request_stop(session.id, make_user())
        case _:
            change(session, launch_id="")
    with recording_agentctl(session, Journal().turn_begins("p0") if reason == "a turn is open" else ()) as agentctl:
        assert send_prompts(session, agentctl) == []
    assert prompt_states(session) == {"p1": "queued"}


def test_prompt_without_a_stream_is_not_sent() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1")
    with_registry(lambda registry: send_next_prompt(registry, session.id))
    assert prompt_states(session) == {"p1": "queued"}


UNFINISHED = {"message_id": "p0", "run_id": "r0", "tools": ["make test"], "since": ""}


def test_interruption_note_is_sent_until_the_agent_has_it() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE, metadata={prompts.INTERRUPTION_KEY: UNFINISHED}), "p1")
    journal = Journal()
    with recording_agentctl(session) as agentctl:
        agentctl.refusal = "busy"
        send_prompts(session, agentctl)
        agentctl.refusal = ""
        send_prompts(session, agentctl)
        first, second = (body["text"] for body in agentctl.prompts)
    assert first == second
    assert "- make test" in first
    assert first.endswith("\n\ndo p1")
    ingest(session, [journal.accepted("p1")], lease=None)
    assert prompts.unfinished_of(fresh(session)) is not None
    ingest(session, [journal.line("prompt.delivered", message_id="p1")], lease=None)
    assert prompts.unfinished_of(fresh(session)) is None


def test_history_is_sent_until_delivered_and_never_logged_again() -> None:
    journal, session = Journal(), queue_prompts(running_session(execution=NO_LEASE), "p0", state="sending")
    ingest(session, [*journal.turn_begins("p0"), *journal.says("I did."), journal.completes("p0")], lease=None)
    queue_prompts(change(session, inject_history=True), "p1")
    with recording_agentctl(session) as agentctl:
        agentctl.refusal = "hangs up"
        send_prompts(session, agentctl)
        agentctl.refusal = ""
        send_prompts(session, agentctl)
        texts = [body["text"] for body in agentctl.prompts]
        assert texts[0] == texts[1]
        for has_lines in ("do p0", "I did.", "do p1"):
            assert has_lines in texts[0]
    ingest(session, [journal.accepted("p1", text=texts[0])], lease=None)
    assert fresh(session).inject_history
    ingest(session, [journal.line("prompt.delivered", message_id="p1")], lease=None)
    assert not fresh(session).inject_history
    spoken = [event.payload["text"] for event in session.events.filter(name="session.message.added").order_by("seq")]
    assert spoken == ["do p0", "I did.", "do p1"]


def test_prompt_without_the_history_does_not_count_as_injection() -> None:
    journal, session = Journal(), queue_prompts(running_session(execution=NO_LEASE), "p0", state="sending")
    change(session, inject_history=True)  # a new agent started before the journal was read
    ingest(session, [*journal.turn_begins("p0"), journal.completes("p0")], lease=None)
    assert fresh(session).inject_history


def test_history_is_injected_once_and_its_receipt_names_the_prompt() -> None:
    journal, session = Journal(), queue_prompts(running_session(execution=NO_LEASE), "p0", state="sending")
    ingest(session, [*journal.turn_begins("p0"), *journal.says("I did."), journal.completes("p0")], lease=None)
    queue_prompts(change(session, inject_history=True), "p1")
    receipt = session.receipts.create(kind="injected", verified="pending", launch_id=session.launch_id)
    with recording_agentctl(session) as agentctl:
        send_prompts(session, agentctl)
    assert "injected_with" not in fresh(receipt).evidence
    ingest(session, [*journal.turn_begins("p1"), journal.completes("p1")], lease=None)
    assert fresh(receipt).evidence["injected_with"] == "p1"
    assert fresh(receipt).verified == "first_turn"
    queue_prompts(session, "p2")
    with recording_agentctl(session, [journal.line("log", text="", level="info", data={})]) as agentctl:
        send_prompts(session, agentctl)
        assert [body["text"] for body in agentctl.prompts] == ["do p2"]
