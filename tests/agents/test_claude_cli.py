"""What Claude Code's command line alone has: where it resumes, what it is asked and told beside its turns."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from executors_app.agentctl.drivers import StartFailed, TurnFailed
from executors_app.agentctl.drivers.cli.stream_json import StreamJsonReader
from executors_app.agentctl.drivers.events import ConversationNamed, JournalLine, TurnErrored
from tests.agents.driver_contract import AGENTS, Talk

CLAUDE = next(agent for agent in AGENTS if agent.name == "claude")


@pytest_asyncio.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Talk]:
    talk = Talk(CLAUDE, tmp_path)
    yield talk
    await talk.driver.stop(0)


async def test_it_speaks_stream_json_and_its_permissions_come_to_us(talk: Talk) -> None:
    await talk.start(model="opus")
    await talk.say("remember the word PELICAN")

    (command,) = talk.commands()
    flags = ["-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
    assert command[: len(flags)] == flags
    assert command[-4:-1] == ["--permission-prompt-tool", "stdio", "--model=opus"]
    assert command[-1].startswith("--session-id=")


async def test_it_resumes_at_the_last_message_of_its_last_finished_turn(talk: Talk) -> None:
    await talk.start()
    await talk.say("remember the word PELICAN")
    token, at = talk.host.tokens[-1], talk.host.last_message_uuid
    assert at
    await talk.begin_again()

    await talk.resume(last_message_uuid=at)
    await talk.say("what was the word?")

    assert talk.commands()[-1][-2:] == [f"--resume={token}", f"--resume-session-at={at}"]
    assert talk.host.last_message_uuid not in (None, at)


async def test_a_message_that_it_does_not_know_costs_nothing_but_a_second_try(talk: Talk) -> None:
    await talk.start()
    await talk.say("remember the word PELICAN")
    await talk.begin_again()

    resumed = await talk.resume(last_message_uuid="8f8c4a55-0000-4000-8000-000000000000")
    assert talk.host.exits == [], "the agent that came up is there"
    await talk.say("what was the word?")

    assert resumed.outcome == "resumed"
    assert talk.host.said() == "The word was PELICAN."
    assert any("does not know the message" in text for text in talk.host.logs())


async def test_while_a_turn_is_open_no_message_is_the_last_one(talk: Talk) -> None:
    await talk.start()
    await talk.say("remember the word PELICAN")
    assert talk.host.last_message_uuid is not None

    with pytest.raises(TurnFailed):
        await talk.say("die")

    assert talk.host.last_message_uuid is None, "a resume at an older message would forget the turn"


async def test_mcp_servers_are_told_on_stdin_and_never_in_its_command(talk: Talk) -> None:
    servers = [{"name": "tickets", "command": "tickets-mcp", "env": {"KEY": "s3cret"}}]
    await talk.start(mcp_servers=servers)
    await talk.say("remember the word PELICAN")

    told = [json.loads(line) for line in (talk.home / "asked").read_text().splitlines()]
    assert {
        "subtype": "mcp_set_servers",
        "servers": {"tickets": {"command": "tickets-mcp", "env": {"KEY": "s3cret"}}},
    } in told
    assert "s3cret" not in str(talk.commands())


async def test_an_agent_that_ends_before_it_is_ready_is_said_with_its_last_words(talk: Talk) -> None:
    with pytest.raises(StartFailed) as failed:
        await talk.start(strategy="native", resume_token="../../etc")

    assert failed.value.code == "token_rejected"
    assert talk.host.exits == []
    assert "No conversation found with session ID: ../../etc" in failed.value.message


def lines_of(*messages: dict[str, object]) -> list[object]:
    read = StreamJsonReader()
    return [told for message in messages for told in read(message)]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"subtype": "success", "is_error": True, "result": "Invalid API key"}, "Invalid API key"),
        ({"subtype": "error_during_execution", "errors": ["one", "two"]}, "one; two"),
        ({"subtype": "error_during_execution", "is_error": True, "error": "amp's word"}, "amp's word"),
        ({"subtype": "error_max_budget_usd"}, "error_max_budget_usd"),
    ],
)
def test_an_error_result_is_no_proof_of_the_conversation_that_it_names(result: dict[str, object], words: str) -> None:
    assert lines_of({"type": "result", "session_id": "asked-for", **result}) == [TurnErrored(words)]


def test_what_a_subagent_says_is_kept_apart_and_what_it_does_is_shown() -> None:
    nested = {"parent_tool_use_id": "toolu_1"}
    said = {"role": "assistant", "content": [{"type": "text", "text": "inner"}]}
    did = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t2", "name": "Read", "input": {"file_path": "a"}}],
    }
    log, call = lines_of(
        {"type": "assistant", "message": said, **nested}, {"type": "assistant", "message": did, **nested}
    )

    assert isinstance(log, JournalLine) and log.kind == "log"
    assert isinstance(call, JournalLine) and call.body["tool_kind"] == "read"
    assert call.body["locations"] == [{"path": "a"}]


def test_a_list_of_todos_is_a_plan_as_well() -> None:
    todos = [{"content": "first", "status": "completed"}, {"content": "second", "status": "in_progress"}]
    block = {"type": "tool_use", "id": "t1", "name": "TodoWrite", "input": {"todos": todos}}
    _, plan = lines_of({"type": "assistant", "message": {"content": [block]}, "parent_tool_use_id": None})

    assert isinstance(plan, JournalLine)
    assert [(step["content"], step["status"]) for step in plan.body["entries"]] == [
        ("first", "completed"),
        ("second", "in_progress"),
    ]


def test_its_first_message_names_the_conversation_and_news_of_tomorrow_are_kept_as_logs() -> None:
    named, log = lines_of(
        {"type": "system", "subtype": "init", "session_id": "one"}, {"type": "weather_report", "x": 1}
    )

    assert named == ConversationNamed("one")
    assert isinstance(log, JournalLine) and log.body["data"] == {"type": "weather_report", "x": 1}
