"""Prompts are given to the agent one at a time, in order, and each at most once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sessions_app.models import Prompt, TaskSession
from sessions_app.services import intents, prompt_context
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.supervisor.prompts import send_next_prompt
from tests.supervisor.agentctls import TalkingAgentctl, talking
from tests.supervisor.journals import Journal, hear
from tests.supervisor.places import with_registry
from tests.supervisor.rows import change, fresh, make_user, names, prompt_states, running_session
from tests.waiting import eventually_async

pytestmark = pytest.mark.django_db(transaction=True)

FREE: dict[str, Any] = {"owner": "", "lease_expires_at": None}


def queued(session: TaskSession, *message_ids: str, **values: Any) -> TaskSession:
    for message_id in message_ids:
        Prompt.objects.create(session=session, message_id=message_id, text=f"do {message_id}", **values)
    return session


def sent(session: TaskSession, agentctl: TalkingAgentctl, times: int = 1) -> list[str]:
    """The message ids that agentctl got when the lane looked so many times, by a supervisor of its own."""

    async def look(registry: ExecutionRegistry) -> None:
        assert await registry.open_stream(session.id) is not None
        for _ in range(times):
            await send_next_prompt(registry, session.id)

    before = len(agentctl.prompts)
    with_registry(look)
    return [body["message_id"] for body in agentctl.prompts[before:]]


def test_the_oldest_prompt_is_given_and_the_next_waits_for_its_end() -> None:
    session = queued(running_session(execution=FREE), "p1", "p2")
    with talking(session) as agentctl:
        assert sent(session, agentctl, times=3) == ["p1"]
    assert prompt_states(session) == {"p1": "sending", "p2": "queued"}
    assert names(session)[-1] == "session.prompt.sending"


def test_the_row_names_execution_and_epoch_before_the_prompt_leaves() -> None:
    session = queued(running_session(execution=FREE), "p1")
    with talking(session, [Journal("epoch-7").line("log")]) as agentctl:
        sent(session, agentctl)
    row = Prompt.objects.get()
    assert (row.execution_id, row.journal_epoch) == (str(session.agent_execution_id), "epoch-7")


def test_the_continue_prompt_goes_before_the_others() -> None:
    session = queued(queued(running_session(execution=FREE), "p1"), "continue:1", kind="continue")
    with talking(session) as agentctl:
        assert sent(session, agentctl) == ["continue:1"]
        assert agentctl.prompts[0]["prompt_kind"] == "continue"


@pytest.mark.parametrize("told", [True, False], ids=["with lines", "still empty"])
def test_a_prompt_on_its_way_is_given_again_to_the_same_journal_alone(told: bool) -> None:
    session = queued(running_session(execution=FREE), "p1", "p2")
    with talking(session, [Journal("epoch-7").line("log")]) as agentctl:
        agentctl.refusal = "hangs up"
        assert sent(session, agentctl) == ["p1"]
        assert prompt_states(session)["p1"] == "sending"
        agentctl.refusal = ""
        assert sent(session, agentctl) == ["p1"]
        agentctl.epoch, agentctl.lines = "epoch-8", [Journal("epoch-8").line("log")] if told else []
        assert sent(session, agentctl) == ["p2"]
    assert prompt_states(session) == {"p1": "held", "p2": "sending"}


def test_a_prompt_that_agentctl_refused_waits_for_its_turn_again() -> None:
    session = queued(running_session(execution=FREE), "p1")
    with talking(session) as agentctl:
        agentctl.refusal = "busy"
        assert sent(session, agentctl) == ["p1"]
        assert prompt_states(session) == {"p1": "queued"}


@pytest.mark.parametrize("refusal", ["busy", "not_running", "journal_full", "hangs up"])
def test_what_did_not_get_through_is_tried_again_after_a_pause_and_not_at_every_look(refusal: str) -> None:
    session = queued(running_session(execution=FREE), "p1")
    with talking(session) as agentctl:
        agentctl.refusal = refusal
        assert sent(session, agentctl, times=5) == ["p1"]
    assert names(session).count("session.prompt.sending") == 1


def test_the_session_is_poked_again_when_the_pause_is_over() -> None:
    session = queued(running_session(execution=FREE), "p1")

    async def look(registry: ExecutionRegistry) -> None:
        async def poke() -> None:
            await send_next_prompt(registry, session.id)

        registry.on_change = lambda session_id: tasks.append(asyncio.ensure_future(poke()))
        assert await registry.open_stream(session.id) is not None
        await poke()
        await eventually_async(lambda: len(agentctl.prompts) >= 3, describe="it is given again and again")
        await asyncio.gather(*tasks)

    tasks: list[asyncio.Future[None]] = []
    with talking(session) as agentctl:
        agentctl.refusal = "busy"
        with_registry(look)


@pytest.mark.parametrize("answer", ["hangs up", "nonsense"])
def test_only_agentctls_own_no_says_that_a_prompt_did_not_arrive(answer: str) -> None:
    session = queued(running_session(execution=FREE), "p1")
    with talking(session) as agentctl:
        agentctl.refusal = answer
        assert sent(session, agentctl) == ["p1"]
    assert prompt_states(session) == {"p1": "sending"}


def test_an_agent_that_went_before_the_delivery_is_looked_after_at_once_and_the_prompt_is_kept() -> None:
    session = queued(running_session(execution=FREE), "p1")
    lost: list[ExecutionStream] = []

    async def look(registry: ExecutionRegistry) -> None:
        registry.on_stream_lost = lost.append
        assert await registry.open_stream(session.id) is not None
        await send_next_prompt(registry, session.id)

    with talking(session) as agentctl:
        agentctl.refusal = "not_running"
        with_registry(look)
    assert [stream.session_id for stream in lost[:1]] == [session.id]
    assert prompt_states(session) == {"p1": "queued"}


def test_a_prompt_that_agentctl_had_and_its_journal_does_not_know_is_held_and_blocks_nobody() -> None:
    session = queued(running_session(execution=FREE), "p1", "p2")
    with talking(session, [Journal("epoch-7").line("log")]) as agentctl:
        agentctl.refusal = "duplicate"
        assert sent(session, agentctl) == ["p1"]
        assert prompt_states(session) == {"p1": "held", "p2": "queued"}
        agentctl.refusal = ""
        assert sent(session, agentctl) == ["p2"]


@pytest.mark.parametrize("reason", ["a turn is open", "a start is ordered", "it was stopped", "no agent is up"])
def test_a_prompt_waits_while(reason: str) -> None:
    session = queued(running_session(execution=FREE), "p1")
    match reason:
        case "a turn is open":
            hear(session, Journal().turn_begins("p0"), lease=None)
        case "a start is ordered":
            intents.ensure_start_intent(session, None, "auto")
        case "it was stopped":
            intents.request_stop(session.id, make_user())
        case _:
            change(session, launch_id="")
    with talking(session, Journal().turn_begins("p0") if reason == "a turn is open" else ()) as agentctl:
        assert sent(session, agentctl) == []
    assert prompt_states(session) == {"p1": "queued"}


def test_nothing_is_given_where_nobody_listens() -> None:
    session = queued(running_session(execution=FREE), "p1")
    assert with_registry(lambda registry: send_next_prompt(registry, session.id)) is False
    assert prompt_states(session) == {"p1": "queued"}


UNFINISHED = {"message_id": "p0", "run_id": "r0", "tools": ["make test"], "since": ""}


def test_a_note_is_told_until_the_agent_has_it_and_then_no_more() -> None:
    session = queued(running_session(execution=FREE, metadata={prompt_context.INTERRUPTION_KEY: UNFINISHED}), "p1")
    journal = Journal()
    with talking(session) as agentctl:
        agentctl.refusal = "busy"
        sent(session, agentctl)
        agentctl.refusal = ""
        sent(session, agentctl)
        first, second = (body["text"] for body in agentctl.prompts)
    assert first == second
    assert "- make test" in first
    assert first.endswith("\n\ndo p1")
    hear(session, [journal.accepted("p1")], lease=None)
    assert prompt_context.unfinished_of(fresh(session)) is not None
    hear(session, [journal.line("prompt.delivered", message_id="p1")], lease=None)
    assert prompt_context.unfinished_of(fresh(session)) is None


def test_history_is_told_to_a_new_agent_until_it_has_it_and_is_not_said_twice_in_the_log() -> None:
    journal, session = Journal(), queued(running_session(execution=FREE), "p0", state="sending")
    hear(session, [*journal.turn_begins("p0"), *journal.says("I did."), journal.completes("p0")], lease=None)
    queued(change(session, inject_history=True), "p1")
    with talking(session) as agentctl:
        agentctl.refusal = "hangs up"
        sent(session, agentctl)
        agentctl.refusal = ""
        sent(session, agentctl)
        texts = [body["text"] for body in agentctl.prompts]
        assert texts[0] == texts[1]
        for told in ("do p0", "I did.", "do p1"):
            assert told in texts[0]
    hear(session, [journal.accepted("p1", text=texts[0])], lease=None)
    assert fresh(session).inject_history
    hear(session, [journal.line("prompt.delivered", message_id="p1")], lease=None)
    assert not fresh(session).inject_history
    said = [event.payload["text"] for event in session.events.filter(name="session.message.added").order_by("seq")]
    assert said == ["do p0", "I did.", "do p1"]


def test_a_prompt_without_the_history_does_not_count_as_its_telling() -> None:
    journal, session = Journal(), queued(running_session(execution=FREE), "p0", state="sending")
    change(session, inject_history=True)  # a new agent has come while the journal was behind
    hear(session, [*journal.turn_begins("p0"), journal.completes("p0")], lease=None)
    assert fresh(session).inject_history


def test_a_history_is_injected_once_and_the_receipt_names_the_prompt() -> None:
    journal, session = Journal(), queued(running_session(execution=FREE), "p0", state="sending")
    hear(session, [*journal.turn_begins("p0"), *journal.says("I did."), journal.completes("p0")], lease=None)
    queued(change(session, inject_history=True), "p1")
    receipt = session.receipts.create(kind="injected", verified="pending", launch_id=session.launch_id)
    with talking(session) as agentctl:
        sent(session, agentctl)
    assert "injected_with" not in fresh(receipt).evidence
    hear(session, [*journal.turn_begins("p1"), journal.completes("p1")], lease=None)
    assert fresh(receipt).evidence["injected_with"] == "p1"
    assert fresh(receipt).verified == "first_turn"
    queued(session, "p2")
    with talking(session, [journal.line("log", text="", level="info", data={})]) as agentctl:
        sent(session, agentctl)
        assert [body["text"] for body in agentctl.prompts] == ["do p2"]
