"""Histories are built in limited processes and outside transactions, and a prompt carries only a current one."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Final

import pytest
from django.db import transaction

from executors_app.wire.log_rate_limit import LOG_TEXT_LIMIT
from sessions_app.confined.client import ConfinedPool, PoolUnavailable
from sessions_app.confined.limits import Limits
from sessions_app.models import Message, MessagePart, PreparedHistory, TaskSession, session_transaction
from sessions_app.prompts.delivery import HistoryOutdated, claim_next_prompt, send_next_prompt
from sessions_app.recovery import prepared_histories
from sessions_app.recovery.rules.history import RULES_VERSION, Injection
from sessions_app.recovery.services import history
from sessions_app.recovery.services.history import current_history
from sessions_app.sessions.services.status import session_status
from sessions_app.supervisor import execution_registry
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.executions import load_execution_facts
from sessions_app.turns.events import RunHeardAgain
from tests.prompts.test_delivery import queue_prompts, send_prompts
from tests.starts.test_start_modes import session_with_history
from tests.supervisor.histories import prepare_history
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.recording_agentctl import recording_agentctl
from tests.supervisor.recording_runtime import with_registry
from tests.supervisor.rows import MINE, NO_LEASE, change, fresh, names, prompt_states, running_session

pytestmark = pytest.mark.django_db(transaction=True)

EPOCH: Final = "epoch-1"


def session_that_lost_its_conversation(text: str = "Rename it.", *, messages: int = 1) -> TaskSession:
    """Return a session with messages whose new agent gets the history with the prompt ``p1``, which is queued."""
    session = running_session(inject_history=True)
    add_messages(session, [text] * messages)
    return queue_prompts(session, "p1")


def add_messages(session: TaskSession, texts: list[str]) -> None:
    """Add messages of the agent to the conversation."""
    first = session.messages.count() + 1
    for seq, text in enumerate(texts, first):
        message = Message.objects.create(
            session=session, seq=seq, updated_seq=seq, role="agent", created_at=session.created_at
        )
        MessagePart.objects.create(message=message, number=0, text=text)


def claim(session: TaskSession) -> str:
    """Claim the next prompt as the supervisor does, and return what is sent."""
    sending = claim_next_prompt(session.id, MINE, EPOCH, frozenset())
    assert sending is not None
    return sending.text


def test_prompt_waits_until_its_history_is_built() -> None:
    session = session_that_lost_its_conversation()
    with pytest.raises(HistoryOutdated):
        claim(session)
    assert prompt_states(session) == {"p1": "queued"}
    prepare_history(session)
    assert "[ASSISTANT]: Rename it." in claim(session)
    assert prompt_states(session) == {"p1": "sending"}


@pytest.mark.parametrize("change_name", ["message", "secret", "rules"])
def test_changed_conversation_secrets_or_rules_need_another_history(
    change_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_that_lost_its_conversation("The word is correct-horse-battery.")
    prepare_history(session)
    if change_name == "message":
        add_messages(session, ["And the tests."])
    elif change_name == "secret":
        change(session.agent_profile, env={"API_KEY": "correct-horse-battery"})
    else:
        monkeypatch.setattr(history, "RULES_VERSION", RULES_VERSION + 1)
    session = fresh(session)
    assert current_history(session) is None
    with pytest.raises(HistoryOutdated):
        claim(session)
    prepare_history(session)
    text = claim(session)
    assert ("And the tests." in text) is (change_name == "message")
    assert ("correct-horse-battery" in text) is (change_name != "secret")


def test_password_in_an_address_of_a_variable_is_secret_whatever_the_variable_is_called() -> None:
    session = session_that_lost_its_conversation("The words are correct-horse and staple/battery.")
    addresses = {"DATABASE_URL": "postgres://ada:correct-horse@db/x", "BROKER": "amqp://ada:staple%2Fbattery@mq"}
    change(session.agent_profile, env=addresses)
    session = fresh(session)
    prepare_history(session)
    text = claim(session)
    assert "correct-horse" not in text
    assert "battery" not in text


def test_supervisor_builds_the_history_and_the_receipt_counts_what_is_sent() -> None:
    session = running_session(execution=NO_LEASE, inject_history=True)
    add_messages(session, ["password = hunter2hunter2", "Done."])
    queue_prompts(session, "p1")
    receipt = session.receipts.create(kind="injected", verified="pending", launch_id=session.launch_id)
    with recording_agentctl(session) as agentctl:
        assert send_prompts(session, agentctl) == ["p1"]
        sent = agentctl.prompts[0]["text"]
    assert "hunter2" not in sent
    assert "(1 secret is left out.)" in sent
    injection = fresh(receipt).evidence["injection"]
    assert (injection["entries_told"], injection["secrets_redacted"]) == (2, 1)
    assert session_status(fresh(session))["history"] == injection


@pytest.mark.parametrize(("kind", "is_counted"), [("injected", True), ("fresh", False), ("failed", False)])
def test_only_the_receipt_of_an_injected_history_counts_what_it_contains(kind: str, is_counted: bool) -> None:
    session = session_that_lost_its_conversation()
    receipt = session.receipts.create(kind=kind, verified="none", launch_id=session.launch_id)
    prepare_history(session)
    claim(session)
    assert ("injection" in fresh(receipt).evidence) is is_counted


def test_receipt_counts_the_history_of_the_last_try() -> None:
    session = session_that_lost_its_conversation()
    earlier = {"injection": {"entries_told": 7}, "fingerprint_after": "f"}
    receipt = session.receipts.create(
        kind="injected", verified="pending", launch_id=session.launch_id, evidence=earlier
    )
    prepare_history(session)
    claim(session)
    evidence = fresh(receipt).evidence
    assert (evidence["injection"]["entries_told"], evidence["fingerprint_after"]) == (1, "f")


def test_message_that_arrives_while_the_history_is_built_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    session = running_session(execution=NO_LEASE, inject_history=True)
    add_messages(session, ["First."])
    queue_prompts(session, "p1")
    store = history.store

    def store_too_late(request: history.HistoryRequest, built: Injection) -> None:
        store(request, built)
        add_messages(session, ["Second."])
        monkeypatch.setattr(history, "store", store)

    monkeypatch.setattr(history, "store", store_too_late)
    with recording_agentctl(session) as agentctl:
        assert send_prompts(session, agentctl) == []
        assert prompt_states(session) == {"p1": "queued"}
        assert send_prompts(session, agentctl) == ["p1"]
        assert "[ASSISTANT]: First.\n[ASSISTANT]: Second." in agentctl.prompts[0]["text"]


def test_prompt_stays_queued_while_no_process_can_build_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    session = running_session(execution=NO_LEASE, inject_history=True)
    add_messages(session, ["First."])
    queue_prompts(session, "p1")
    with monkeypatch.context() as patch, recording_agentctl(session) as agentctl:
        patch.setattr(history, "TEXT_POOL", ConfinedPool("tests.no_such_module"))
        assert send_prompts(session, agentctl, times=3) == []
        with pytest.raises(PoolUnavailable):
            prepare_history(session)
        patch.undo()
        assert send_prompts(session, agentctl) == ["p1"]
    assert names(session).count("session.prompt.sending") == 1


def test_texts_that_cost_too_much_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_that_lost_its_conversation("recaptcha_`key`" * 500, messages=3)
    monkeypatch.setattr(history, "LIMITS", Limits(cpu_seconds=0.05, seconds=60, memory=512 << 20))
    prepare_history(session)
    text = claim(session)
    assert "recaptcha_" not in text
    assert "(3 older entries are left out.)" in text
    assert text.count("do p1") == 1


def test_tool_call_with_too_much_json_is_only_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    session, journal = running_session(inject_history=True), Journal()
    monkeypatch.setattr(history, "PAYLOAD_CHARS", 1000)
    begins = journal.turn_begins("p0", "Go.")
    tool = journal.tool("t1", title="read", raw_input={"path": "a" * 2000}, status="completed")
    ingest(session, [*begins, tool, *journal.says("Done."), journal.completes("p0")])
    prepare_history(fresh(session))
    prepared = current_history(fresh(session))
    assert prepared is not None
    assert "[TOOL RESULT: tool] (too long to include)" in prepared.text
    assert "aaaa" not in prepared.text


def test_history_is_not_built_in_a_transaction() -> None:
    session = session_that_lost_its_conversation()
    with session_transaction(session.id) as changing, pytest.raises(RuntimeError):
        prepare_history(changing.session)
    with transaction.atomic(), pytest.raises(RuntimeError):
        prepare_history(session)


def test_history_is_deleted_with_its_session() -> None:
    session = session_that_lost_its_conversation()
    request = history.load_request(session)
    assert request is not None
    prepare_history(session)
    session_id = session.id
    session.delete()
    assert not PreparedHistory.objects.filter(session_id=session_id).exists()
    history.store(request, Injection("too late", 1))
    assert not PreparedHistory.objects.exists()


def test_hostile_messages_do_not_delay_the_writes_of_another_session() -> None:
    hostile = session_that_lost_its_conversation(("recaptcha_key" * 400 + "key" + " " * 3000)[:8000], messages=45)
    other = running_session()

    async def write_while_it_is_built(registry: ExecutionRegistry) -> int:
        building = asyncio.create_task(prepared_histories.prepare(registry.database, hostile.id))
        written = 0
        while not building.done():
            await registry.database(_record_something, other.id)
            written += 1
        await building
        return written

    written: list[int] = []

    async def run(registry: ExecutionRegistry) -> None:
        written.append(await write_while_it_is_built(registry))

    with_registry(run)
    assert written[0] > 10, "each of them waits for a few milliseconds, and the history takes seconds"
    assert "recaptcha_key" in claim(hostile)


def _record_something(session_id: uuid.UUID) -> None:
    with session_transaction(session_id) as transaction_:
        transaction_.record_event(RunHeardAgain(run_id=None))


def test_status_of_a_session_without_agent_has_the_history_that_its_supervisor_built() -> None:
    session = session_with_history(resume_token="")
    change(session.agent_profile, history_context_injection=True)

    async def wake(registry: ExecutionRegistry) -> None:
        await send_next_prompt(registry, session.id)

    with_registry(wake)
    assert session_status(fresh(session))["history"]["entries_told"] == 3


def test_end_of_an_agents_log_has_no_secrets_before_any_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    session = running_session()
    monkeypatch.setattr(execution_registry, "_read", lambda *_: "password = hunter2hunter2\nboom")
    tail = with_registry(lambda registry: execution_registry.read_log_tail(registry, session.id))
    assert tail == "password = [REDACTED]\nboom"


def test_line_of_a_log_that_agentctl_has_cut_ends_before_half_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    session = running_session()
    facts = load_execution_facts(session.id)
    assert facts is not None
    line = ("words " * LOG_TEXT_LIMIT)[: LOG_TEXT_LIMIT - 20] + " ghp_1234567890abcde"
    cut = {"kind": "log", "text": line}
    monkeypatch.setattr(execution_registry, "runtime", lambda name: SimpleNamespace(unread_journal=lambda *_: [cut]))
    assert execution_registry._read(facts, 0, EPOCH) == line.removesuffix("ghp_1234567890abcde")
