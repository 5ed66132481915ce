"""Claude Code's command line: resuming, control messages, subagents and plans."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from executors_app.agentctl.drivers import StartFailed, TurnFailed
from executors_app.agentctl.drivers.cli_events import ConversationNamed, JournalLine, TurnErrored
from executors_app.agentctl.drivers.stream_json import ControlProtocol, StreamJsonReader
from tests.agents.driver_contract import AGENTS, Talk
from tests.agents.hosts import RecordingHost
from tests.waiting import PATIENCE, eventually_async

CLAUDE = next(agent for agent in AGENTS if agent.name == "claude")


@pytest_asyncio.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Talk]:
    talk = Talk(CLAUDE, tmp_path)
    yield talk
    await talk.driver.stop(0)


async def test_claude_uses_stream_json_and_asks_us_for_permissions(talk: Talk) -> None:
    await talk.start(model="opus")
    await talk.say("remember the word PELICAN")

    (command,) = talk.commands()
    flags = ["-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
    assert command[: len(flags)] == flags
    assert command[-4:-1] == ["--permission-prompt-tool", "stdio", "--model=opus"]
    assert command[-1].startswith("--session-id=")


async def test_resume_uses_the_last_message_of_the_last_finished_turn(talk: Talk) -> None:
    await talk.start()
    await talk.say("remember the word PELICAN")
    token, at = talk.host.tokens[-1], talk.host.last_message_uuid
    assert at
    await talk.begin_again()

    await talk.resume(last_message_uuid=at)
    await talk.say("what was the word?")

    assert talk.commands()[-1][-2:] == [f"--resume={token}", f"--resume-session-at={at}"]
    assert talk.host.last_message_uuid not in (None, at)


async def test_unknown_resume_message_only_costs_a_second_attempt(talk: Talk) -> None:
    await talk.start()
    await talk.say("remember the word PELICAN")
    await talk.begin_again()

    resumed = await talk.resume(last_message_uuid="8f8c4a55-0000-4000-8000-000000000000")
    assert talk.host.exits == [], "the agent that started still runs"
    await talk.say("what was the word?")

    assert resumed.outcome == "resumed"
    assert talk.host.agent_text() == "The word was PELICAN."
    assert any("does not know the last message" in text for text in talk.host.logs())


async def test_last_message_is_unset_while_a_turn_is_open(talk: Talk) -> None:
    await talk.start()
    await talk.say("remember the word PELICAN")
    assert talk.host.last_message_uuid is not None

    with pytest.raises(TurnFailed):
        await talk.say("die")

    assert talk.host.last_message_uuid is None, "resuming at an older message would lose the turn"


async def test_unreadable_end_of_a_turn_fails_the_turn(talk: Talk) -> None:
    await talk.start()

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(TurnFailed, match="cannot be read"):
            await talk.say("garble")

    await talk.say("remember the word PELICAN")


async def test_mcp_servers_are_sent_on_stdin_not_on_the_command_line(talk: Talk) -> None:
    servers = [{"name": "tickets", "command": "tickets-mcp", "env": {"KEY": "s3cret"}}]
    await talk.start(mcp_servers=servers)
    await talk.say("remember the word PELICAN")

    requests = [json.loads(line) for line in (talk.home / "asked").read_text().splitlines()]
    assert {
        "subtype": "mcp_set_servers",
        "servers": {"tickets": {"command": "tickets-mcp", "env": {"KEY": "s3cret"}}},
    } in requests
    assert "s3cret" not in str(talk.commands())


async def test_agent_that_exits_before_it_is_ready_is_quoted(talk: Talk) -> None:
    with pytest.raises(StartFailed) as failed:
        await talk.start(strategy="native", resume_token="../../etc")

    assert failed.value.code == "token_rejected"
    assert talk.host.exits == []
    assert "No conversation found with session ID: ../../etc" in failed.value.message


def _permission_request(request_id: str, command: str) -> dict[str, object]:
    request = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": command}}
    return {"type": "control_request", "request_id": request_id, "request": request}


async def test_two_open_requests_with_one_id_are_both_refused() -> None:
    host, written = RecordingHost(), []

    async def write(line: bytes) -> None:
        written.append(json.loads(line)["response"])

    control = ControlProtocol(write, host)
    control.handle_if_control(_permission_request("1", "ls"))
    await eventually_async(lambda: host.questions)
    control.handle_if_control(_permission_request("1", "rm -r ~"))
    await eventually_async(lambda: written)

    (_, first), *more = host.questions
    assert first.cancelled(), "nobody is asked any more"
    assert more == []
    assert [(reply["request_id"], reply["subtype"]) for reply in written] == [("1", "error")]
    assert ["both were refused" in text for text in host.logs()] == [True]

    control.handle_if_control(_permission_request("1", "ls"))
    await eventually_async(lambda: len(host.questions) == 2)
    control.handle_if_control({"type": "control_cancel_request", "request_id": "1"})
    await eventually_async(host.questions[1][1].cancelled)
    await control.close()


async def test_repeated_request_gets_one_answer() -> None:
    host, written = RecordingHost(), []

    async def write(line: bytes) -> None:
        written.append(json.loads(line)["response"])

    control = ControlProtocol(write, host)
    control.handle_if_control(_permission_request("1", "ls"))
    control.handle_if_control(_permission_request("1", "ls"))
    await eventually_async(lambda: host.questions)
    host.questions[0][1].set_result("allow")
    await eventually_async(lambda: written)

    assert len(host.questions) == 1
    assert [reply["response"]["behavior"] for reply in written] == ["allow"]
    await control.close()


def lines_of(*messages: dict[str, object]) -> list[object]:
    read = StreamJsonReader()
    return [line for message in messages for line in read(message)]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"subtype": "success", "is_error": True, "result": "Invalid API key"}, "Invalid API key"),
        ({"subtype": "error_during_execution", "errors": ["one", "two"]}, "one; two"),
        ({"subtype": "error_during_execution", "is_error": True, "error": "amp's word"}, "amp's word"),
        ({"subtype": "error_max_budget_usd"}, "error_max_budget_usd"),
    ],
)
def test_error_result_does_not_confirm_its_conversation_id(result: dict[str, object], words: str) -> None:
    assert lines_of({"type": "result", "session_id": "asked-for", **result}) == [TurnErrored(words)]


def test_subagent_text_is_logged_and_its_tool_calls_are_shown() -> None:
    nested = {"parent_tool_use_id": "toolu_1"}
    fields = {"role": "assistant", "content": [{"type": "text", "text": "inner"}]}
    did = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t2", "name": "Read", "input": {"file_path": "a"}}],
    }
    log, call = lines_of(
        {"type": "assistant", "message": fields, **nested}, {"type": "assistant", "message": did, **nested}
    )

    assert isinstance(log, JournalLine) and log.kind == "log"
    assert isinstance(call, JournalLine) and call.body["tool_kind"] == "read"
    assert call.body["locations"] == [{"path": "a"}]
    assert call.body["parent_tool_call_id"] == "toolu_1"


@pytest.mark.parametrize(
    "odd",
    [
        7,
        None,
        {"type": "tool_use", "name": "Bash"},
        {"type": "tool_result", "content": "x"},
        {"type": "tool_use", "id": "t1", "name": "TodoWrite", "input": {"todos": ["first"]}},
    ],
)
def test_odd_block_costs_no_other_block_of_its_message(odd: object) -> None:
    blocks = [odd, "plain", {"type": "text", "text": "last"}]
    lines = lines_of({"type": "assistant", "message": {"content": blocks}, "parent_tool_use_id": None})

    texts = [line.body["text"] for line in lines if isinstance(line, JournalLine) and line.kind == "message.agent"]
    assert "".join(texts).split() == ["plain", "last"]


def test_todo_list_is_also_a_plan() -> None:
    todos = [{"content": "first", "status": "completed"}, {"content": "second", "status": "in_progress"}]
    block = {"type": "tool_use", "id": "t1", "name": "TodoWrite", "input": {"todos": todos}}
    _, plan = lines_of({"type": "assistant", "message": {"content": [block]}, "parent_tool_use_id": None})

    assert isinstance(plan, JournalLine)
    assert [(step["content"], step["status"]) for step in plan.body["entries"]] == [
        ("first", "completed"),
        ("second", "in_progress"),
    ]


def test_init_message_names_the_conversation_and_unknown_messages_are_logged() -> None:
    named, log = lines_of(
        {"type": "system", "subtype": "init", "session_id": "one"}, {"type": "weather_report", "x": 1}
    )

    assert named == ConversationNamed("one")
    assert isinstance(log, JournalLine) and log.body["data"] == {"type": "weather_report", "x": 1}
