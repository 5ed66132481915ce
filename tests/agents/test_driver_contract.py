"""The contract of every driver, tested with a fake agent for each (``driver_contract``)."""

from __future__ import annotations

import asyncio

import pytest

from executors_app.agentctl.drivers import KeepsProcesses, StartFailed, TurnFailed
from executors_app.agentctl.process.background import BackgroundProcesses
from executors_app.machine.process import identity
from tests.agents.driver_contract import UNKNOWN, Talk
from tests.waiting import PATIENCE, eventually_async


async def test_turn_records_text_tool_call_and_usage(talk: Talk) -> None:
    started = await talk.start()

    assert await talk.say("use a tool") == "end_turn"

    assert started.outcome == "created"
    assert started.agent["name"]
    host = talk.host
    assert host.agent_text() == "It says hello."
    (call,), (result,) = host.of("tool.call"), host.of("tool.update")
    assert "echo hello" in call["title"]
    assert call["tool_kind"] == "execute"
    assert call["status"] == "in_progress"
    assert "echo hello" in call["raw_input"]["command"]
    assert (result["tool_call_id"], result["status"]) == (call["tool_call_id"], "completed")
    assert result["content"] == [{"type": "content", "content": {"type": "text", "text": "hello"}}]
    assert [line["usage"] != {} for line in host.of("usage")] == [True]
    kinds = [line["kind"] for line in host.lines if line["kind"] != "log"]
    assert kinds == ["prompt.delivered", "tool.call", "tool.update", "message.agent", "usage"]


async def test_tool_call_ids_are_unique_across_turns(talk: Talk) -> None:
    await talk.start()

    await talk.say("use a tool")
    await talk.say("use a tool")

    names = [line["tool_call_id"] for line in talk.host.of("tool.call")]
    assert len(set(names)) == 2


async def test_conversation_has_its_id_before_its_first_message(talk: Talk) -> None:
    started = await talk.start()
    record, unnamed_texts = talk.host.record, []

    def watch(kind: str, **body: object) -> int:
        if kind == "message.agent" and not talk.host.tokens:
            unnamed_texts.append(body)
        return record(kind, **body)

    talk.host.record = watch  # type: ignore[method-assign]
    await talk.say("remember the word PELICAN")

    assert unnamed_texts == []
    assert len(set(talk.host.tokens)) == 1
    assert started.resume_token in (None, talk.host.tokens[0])


async def test_turns_of_one_agent_share_one_conversation(talk: Talk) -> None:
    await talk.start()

    await talk.say("remember the word PELICAN")
    await talk.say("what was the word?")

    assert "The word was PELICAN." in talk.host.agent_text()
    assert len(set(talk.host.tokens)) == 1


async def test_resumed_agent_remembers_the_conversation(talk: Talk) -> None:
    await talk.start()
    await talk.say("remember the word PELICAN")
    token = talk.host.tokens[-1]
    await talk.begin_again()

    resumed = await talk.resume()
    await talk.say("what was the word?")

    assert (resumed.outcome, resumed.resume_token) == (talk.agent.resumed, token)
    assert talk.host.agent_text() == "The word was PELICAN."
    assert set(talk.host.tokens) == {token}


async def test_agent_killed_in_a_turn_resumes_its_conversation(talk: Talk) -> None:
    await talk.start()
    await talk.say("remember the word PELICAN")
    with pytest.raises(TurnFailed):
        await talk.say("die")
    await talk.begin_again()

    await talk.resume()
    await talk.say("what was the word?")

    assert talk.host.agent_text() == "The word was PELICAN."


async def test_lost_conversation_is_recognised_and_never_started_anew(talk: Talk) -> None:
    if talk.agent.process_per_turn:
        await talk.resume(UNKNOWN)
        with pytest.raises(TurnFailed) as in_turn:
            await talk.say("what was the word?")
        assert in_turn.value.code == "token_rejected"
        assert talk.host.exits == [], "agentctl stops the agent after the turn"
    else:
        with pytest.raises(StartFailed) as at_start:
            await talk.resume(UNKNOWN)
        assert (at_start.value.code, at_start.value.token_valid) == ("token_rejected", False)
    assert talk.driver.pid is None
    assert talk.host.agent_text() == ""
    assert talk.host.tokens == []


async def test_unrecognised_error_keeps_the_token(talk: Talk) -> None:
    patterns = {"gone_patterns": ["a word that it never says"]}
    if talk.agent.process_per_turn:
        await talk.resume(UNKNOWN, **patterns)
        with pytest.raises(TurnFailed) as in_turn:
            await talk.say("what was the word?")
        assert in_turn.value.code == "agent_error"
        assert UNKNOWN in in_turn.value.message, "the error shows the agent's own message"
    else:
        with pytest.raises(StartFailed) as at_start:
            await talk.resume(UNKNOWN, **patterns)
        assert at_start.value.token_valid is not talk.agent.names_lost_conversation
    assert talk.host.tokens == []


async def test_agent_that_resumes_another_conversation_is_detected(talk: Talk) -> None:
    if not talk.agent.names_itself:
        pytest.skip("the agent does not say which conversation it is in; its replay is compared instead")
    await talk.start()
    await talk.say("remember the word PELICAN")
    tokens = list(talk.host.tokens)
    await talk.begin_again()

    await talk.resume(lies=True)
    with pytest.raises(TurnFailed) as failed:
        await talk.say("remember the word HERON")

    assert failed.value.code == "context_mismatch"
    assert talk.host.agent_text() == "", "nothing of another conversation is reported in this one"
    assert set(talk.host.tokens) == set(tokens), "the resume token is kept"


async def test_cancel_ends_the_turn_and_the_next_one_works(talk: Talk) -> None:
    await talk.start()
    await talk.say("remember the word PELICAN")
    turn = asyncio.create_task(talk.say("hang"))
    await eventually_async(lambda: "waiting" in talk.host.agent_text())

    await talk.driver.cancel()

    assert await asyncio.wait_for(turn, PATIENCE) == "cancelled"
    assert talk.host.exits == []
    if talk.agent.process_per_turn:
        assert talk.driver.pid is None
        assert talk.processes_left() == []
    await talk.say("what was the word?")
    assert talk.host.agent_text().endswith("The word was PELICAN.")


async def test_cancel_without_a_turn_does_nothing(talk: Talk) -> None:
    await talk.driver.cancel()
    await talk.start()
    await talk.driver.cancel()

    assert await talk.say("remember the word PELICAN") == "end_turn"


async def test_stop_in_a_turn_leaves_no_process_and_is_reported_once(talk: Talk) -> None:
    await talk.start()
    turn = asyncio.create_task(talk.say("hang"))
    await eventually_async(lambda: "waiting" in talk.host.agent_text())

    await talk.driver.stop(0.2)

    with pytest.raises(TurnFailed) as failed:
        await turn
    assert failed.value.code == "agent_exited"
    assert len(talk.host.exits) == 1
    assert talk.driver.pid is None
    assert talk.processes_left() == []
    with pytest.raises(TurnFailed) as late:
        await talk.say("remember the word PELICAN")
    assert late.value.code == "not_running"


async def test_stop_between_turns_leaves_no_process(talk: Talk) -> None:
    await talk.start()
    await talk.say("remember the word PELICAN")

    await talk.driver.stop(0.2)
    await talk.driver.stop(0.2)

    assert talk.processes_left() == []
    assert len(talk.host.exits) == (0 if talk.agent.process_per_turn else 1)


async def test_background_process_outlives_turns_and_ends_with_the_agent(talk: Talk) -> None:
    await talk.start()
    guards = talk.driver.guard_pids() if isinstance(talk.driver, KeepsProcesses) else []
    background = BackgroundProcesses()
    background.note_work_began(talk.driver.pid, guards)
    await talk.say("leave")
    left = identity.identify(int((talk.home / "left").read_text()))
    assert left is not None

    await talk.say("remember the word PELICAN")

    assert identity.is_alive(left)
    guards = talk.driver.guard_pids() if isinstance(talk.driver, KeepsProcesses) else []
    running = background.running(talk.driver.pid, guards)
    assert any("time.sleep(3600)" in each.command for each in running.processes), "the page names it"
    await talk.driver.stop(0.2)
    assert talk.processes_left() == []
    assert not identity.is_alive(left)


async def test_agent_that_dies_takes_its_background_processes_along(talk: Talk) -> None:
    await talk.start()
    await talk.say("leave")

    with pytest.raises(TurnFailed):
        await talk.say("die")

    assert talk.processes_left() == []


async def test_background_processes_that_a_cancel_ends_are_named(talk: Talk) -> None:
    if not talk.agent.process_per_turn:
        pytest.skip("its process stays, and with it what it has started")
    await talk.start()
    turn = asyncio.create_task(talk.say("leave and hang"))
    await eventually_async(lambda: "waiting" in talk.host.agent_text())

    await talk.driver.cancel()
    await turn

    assert talk.processes_left() == []
    (warning,) = [line for line in talk.host.of("log") if line.get("level") == "warning"]
    assert "time.sleep(3600)" in warning["text"]
    await talk.say("leave")
    turn = asyncio.create_task(talk.say("hang"))
    await eventually_async(lambda: talk.host.agent_text().endswith("waiting"))
    await talk.driver.cancel()
    await turn
    assert len(talk.processes_left()) == 1, "what an earlier turn has left runs on"


async def test_agent_with_a_process_per_turn_has_none_between_turns(talk: Talk) -> None:
    await talk.start()
    assert talk.has_process() != talk.agent.process_per_turn
    turn = asyncio.create_task(talk.say("hang"))
    await eventually_async(lambda: "waiting" in talk.host.agent_text())
    assert talk.has_process()

    await talk.driver.cancel()
    await turn

    assert talk.has_process() != talk.agent.process_per_turn
    assert talk.host.exits == []


async def test_agent_is_not_started_twice(talk: Talk) -> None:
    await talk.start()

    with pytest.raises(StartFailed) as failed:
        await talk.start()

    assert failed.value.code == "already_running"


async def test_line_of_a_megabyte_is_read(talk: Talk) -> None:
    await talk.start()

    await talk.say("shout 1048576")

    assert len(talk.host.agent_text()) == 1024 * 1024


async def test_prompt_of_a_megabyte_arrives(talk: Talk) -> None:
    await talk.start()

    assert await talk.say("x" * 1024 * 1024 + "\nremember the word PELICAN") == "end_turn"

    assert talk.host.agent_text() == "I will remember PELICAN."
