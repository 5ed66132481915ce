"""The contract of every driver when its agent fails, dies, asks, or prints invalid output."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace

import pytest

from executors_app.agentctl.drivers import StartFailed, TurnFailed
from tests.agents.driver_contract import Talk
from tests.waiting import eventually_async


async def test_exit_of_an_agent_is_recorded_once_before_its_turn_fails(talk: Talk) -> None:
    await talk.start()

    with pytest.raises(TurnFailed) as failed:
        await talk.say("die")

    assert failed.value.code == "agent_exited"
    assert talk.host.exits == [-signal.SIGKILL]
    assert talk.host.agent_text() == "I will just", "the last words were still in the pipe"
    assert talk.driver.pid is None
    with pytest.raises(TurnFailed) as late:
        await talk.say("what was the word?")
    assert late.value.code == "not_running"


async def test_killed_agent_takes_its_process_tree_with_it(talk: Talk) -> None:
    await talk.start()
    turn = asyncio.create_task(talk.say("hang"))
    await eventually_async(lambda: "waiting" in talk.host.agent_text())

    assert talk.driver.pid is not None
    os.kill(talk.driver.pid, signal.SIGKILL)

    with pytest.raises(TurnFailed):
        await turn
    assert talk.host.exits == [-signal.SIGKILL]
    assert talk.processes_left() == []


async def test_agent_error_fails_the_turn_and_the_agent_stays(talk: Talk) -> None:
    await talk.start()

    with pytest.raises(TurnFailed) as failed:
        await talk.say("fail")

    assert failed.value.code == "agent_error"
    assert "529 overloaded" in failed.value.message
    assert talk.host.exits == []
    assert await talk.say("remember the word PELICAN") == "end_turn"


async def test_missing_program_is_a_permanent_failure(talk: Talk) -> None:
    absent = replace(talk.request(), argv=["/none/such"])

    with pytest.raises(StartFailed) as failed:
        await talk.driver.start(absent)

    assert (failed.value.code, failed.value.permanent, failed.value.token_valid) == ("program_missing", True, True)


async def test_silent_agent_is_ended_after_the_start_timeout(talk: Talk) -> None:
    silent = [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]

    with pytest.raises(StartFailed) as failed:
        await talk.driver.start(replace(talk.request(), argv=silent, timeout=1.0))

    assert (failed.value.code, failed.value.token_valid) == ("start_timeout", True)
    assert talk.processes_left() == []


async def test_permission_waits_until_it_is_answered(talk: Talk) -> None:
    if talk.agent.asks is None:
        pytest.skip("the agent cannot ask questions in its turns")
    await talk.start()
    for option, words in talk.agent.asks.items():
        turn = asyncio.create_task(talk.say("ask"))
        request, answer = (await eventually_async(lambda: talk.host.questions)).pop()
        assert "rm -r build" in request["tool_call"]["title"]
        assert option in [each["option_id"] for each in request["options"]]
        answer.set_result(option)
        await turn
        assert talk.host.agent_text().endswith(words)


async def test_invalid_lines_between_valid_ones_are_logged(talk: Talk) -> None:
    await talk.start()

    assert await talk.say("litter") == "end_turn"

    assert [line["text"].strip() for line in talk.host.of("message.agent")] == ["before", "after"]
    assert any("not json at all" in text for text in talk.host.logs())


async def test_flood_on_stderr_does_not_block_and_is_rate_limited(talk: Talk) -> None:
    await talk.start()

    assert await talk.say("whisper") == "end_turn"
    await talk.driver.stop(0)

    assert talk.host.agent_text() == "I whispered."
    assert 1 <= len(talk.host.logs("stderr")) < 100


async def test_agent_output_is_not_read_while_the_journal_is_full(talk: Talk) -> None:
    await talk.start()
    turn = asyncio.create_task(talk.say("flood 1000"))
    await eventually_async(lambda: len(talk.host.agent_text()) > 10_000)
    talk.host.has_room.clear()
    previous = [-1]

    def is_blocked() -> bool:
        previous.append(int((talk.home / "said").read_text() or 0))
        return 0 < previous[-1] == previous[-2] == previous[max(-8, -len(previous))]

    await eventually_async(is_blocked)
    assert previous[-1] < 900, "most of the megabyte is not yet written"
    talk.host.has_room.set()

    assert await turn == "end_turn"
    output = talk.host.agent_text().replace("\n\n", "")
    assert [int(word) for word in output.split(".") if word.strip()] == list(range(1, 1001))
