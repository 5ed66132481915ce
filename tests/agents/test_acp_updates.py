"""Which conversation an update belongs to: replays around the answer, other ids, sub-agents, and too early ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from executors_app.agentctl.drivers import Driver
from executors_app.agentctl.drivers.acp_updates import UpdateRouter
from tests.agents.conftest import MakeRequest
from tests.agents.hosts import RecordingHost
from tests.agents.scripts import SESSION, Action, agent, chunk, request, result, update
from tests.waiting import PATIENCE, eventually_async

ReadByAgent = Callable[[], list[dict[str, Any]]]
CHILD = "a-sub-agents-id"
OPTIONS = [{"optionId": "yes", "name": "Allow", "kind": "allow_once"}]


def of_child(line: str) -> str:
    return line.replace(SESSION, CHILD)


def loading(*lines: str) -> Any:
    return agent(load=True, session_load=list(lines), session_prompt=[chunk("agent", "answer"), result({})])


@pytest.mark.parametrize(
    "lines",
    [
        [result({}), chunk("user", "paint it"), chunk("agent", "done")],
        [chunk("user", "paint it"), result({}), chunk("agent", "done"), chunk("user", "and the door")],
        [chunk("user", "paint it"), chunk("agent", "do"), result({}), chunk("agent", "ne"), chunk("user", "go on")],
    ],
    ids=["after the answer", "around the answer", "in the middle of a message"],
)
async def test_replay_after_the_answer_is_not_new_output(
    lines: list[str], driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    start_request = request_for(loading(*lines), strategy="native", resume_token=SESSION, expected_requests=3)

    loaded = await driver.start(start_request)

    assert loaded.replayed_user_texts[0] == "paint it"
    assert len(loaded.replayed_user_digests) == len(loaded.replayed_user_texts)
    assert host.agent_text() == ""
    assert not host.of("message.user")
    await driver.prompt("m1", "hello", (), lambda: None)
    assert host.agent_text() == "answer"


async def test_text_after_the_answer_is_marked_where_nothing_of_the_user_was_replayed(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    lines = [result({}), chunk("agent", "the "), chunk("agent", "answer")]

    await driver.start(request_for(loading(*lines), strategy="native", resume_token=SESSION, expected_requests=1))

    (line,) = host.of("message.agent")
    assert (line["text"], line["may_be_replayed"]) == ("the answer", True)


async def test_conversation_continues_under_the_id_of_the_answer(
    driver: Driver, host: RecordingHost, request_for: MakeRequest, read_by_agent: ReadByAgent
) -> None:
    replay = chunk("user", "paint it").replace(SESSION, "fork-2")
    answer_chunk = chunk("agent", "answer").replace(SESSION, "fork-2")
    script = agent(
        load=True, session_load=[replay, result({"sessionId": "fork-2"})], session_prompt=[answer_chunk, result({})]
    )

    loaded = await driver.start(request_for(script, strategy="native", resume_token=SESSION, expected_requests=1))
    await driver.prompt("m1", "hello", (), lambda: None)

    assert (loaded.outcome, loaded.resume_token) == ("loaded", "fork-2")
    assert loaded.replayed_user_texts == ["paint it"]
    assert host.tokens == ["fork-2"]
    assert host.agent_text() == "answer"
    [prompt] = [message for message in read_by_agent() if message["method"] == "session/prompt"]
    assert prompt["params"]["sessionId"] == "fork-2"


async def test_updates_before_there_is_a_conversation_are_not_part_of_it(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    script = agent(session_new=[chunk("agent", "stale").replace(SESSION, "old"), result({"sessionId": SESSION})])
    script["initialize"][0].insert(0, chunk("agent", "too early"))

    await driver.start(request_for(script))

    assert host.agent_text() == ""
    assert host.logs() == [
        "the agent sent an update before there was a conversation",
        "the agent sent an update of another conversation",
    ]


@pytest.mark.parametrize("expected", [0, 1])
async def test_replay_into_a_new_conversation_is_not_output(
    expected: int, driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    replay = [chunk("user", "paint it"), chunk("agent", "painted")]
    script = agent(session_new=[*replay, result({"sessionId": SESSION})])

    started = await driver.start(request_for(script, expected_requests=expected))

    assert (started.outcome, started.replayed, started.replayed_user_texts) == ("created", 2, ["paint it"])
    assert host.agent_text() == ""


async def test_new_conversation_without_words_of_a_user_is_not_a_replay(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    script = agent(session_new=[chunk("agent", "Welcome!"), result({"sessionId": SESSION})])

    started = await driver.start(request_for(script, expected_requests=3))

    assert (started.replayed, host.agent_text()) == (0, "Welcome!")


async def test_sub_agent_is_shown_under_its_own_name(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    call = update("tool_call", toolCallId="c1", title="rm -rf build", status="pending")
    lines: list[Action] = [of_child(chunk("agent", "working")), of_child(call), chunk("agent", "done"), result({})]
    await driver.start(request_for(agent(session_prompt=lines)))

    await driver.prompt("m1", "hello", (), lambda: None)

    assert host.agent_text() == "done"
    (text,), (tool,) = host.of("message.sub_agent"), host.of("tool.call")
    assert (text["text"], text["sub_agent"]) == ("working", "Sub-agent 1")
    assert (tool["title"], tool["sub_agent"]) == ("rm -rf build", "Sub-agent 1")
    assert CHILD not in json.dumps(host.lines)


async def test_permission_names_the_sub_agent_that_asks(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    params = {"sessionId": CHILD, "toolCall": {"toolCallId": "c1"}, "options": OPTIONS}
    lines: list[Action] = [of_child(chunk("agent", "working")), request("r1", "session/request_permission", params)]
    ended = result({"stopReason": "end_turn"}).replace("$ID", "3")
    answered: list[Action] = [chunk("agent", "done"), ended]
    await driver.start(request_for(agent(session_prompt=lines, answer=answered)))
    turn = asyncio.create_task(driver.prompt("m1", "hello", (), lambda: None))

    (question, answer), *_ = await eventually_async(lambda: host.questions)

    assert question["tool_call"] == {"tool_call_id": "c1", "sub_agent": "Sub-agent 1"}
    answer.set_result("yes")
    assert await turn == "end_turn"


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}],
        "one two",
    ],
)
async def test_message_with_unusual_content_is_shown(
    content: Any, driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    await driver.start(request_for(agent(session_prompt=[update("agent_message_chunk", content=content), result({})])))

    await driver.prompt("m1", "hello", (), lambda: None)

    assert host.agent_text() == "one two"


def router(seen: list[tuple[str, bool]], logs: list[str]) -> UpdateRouter:
    def record(kind: str, **body: Any) -> None:
        logs.append(body["text"])

    def take(reported: Any, doubtful: bool) -> None:
        seen.append((reported["content"]["text"], doubtful))

    return UpdateRouter(record, lambda reported: False, take)


def text_of(role: str, text: str) -> dict[str, Any]:
    return {"sessionUpdate": f"{role}_message_chunk", "content": {"type": "text", "text": text}}


async def test_replay_that_begins_after_the_start_is_not_new_output() -> None:
    seen: list[tuple[str, bool]] = []
    logs: list[str] = []
    updates = router(seen, logs)
    updates.begin_restore(SESSION)
    await updates.settle(None, 0)

    for line in (text_of("user", "paint it"), text_of("agent", "done")):
        updates.receive(SESSION, line)

    assert seen == []
    assert logs == ["the agent replayed a part of the conversation after its start"] * 2
    updates.prompted()
    updates.receive(SESSION, text_of("agent", "new"))
    assert seen == [("new", False)]


async def test_endless_replay_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executors_app.agentctl.drivers.acp_updates._REPLAY_LIMIT", 0.2)
    updates = router([], [])
    updates.begin_restore(SESSION)

    async def flood() -> None:
        while True:
            updates.receive(SESSION, text_of("agent", "more"))
            await asyncio.sleep(0.01)

    flooding = asyncio.create_task(flood())
    try:
        replay = await asyncio.wait_for(updates.settle(None, 5), PATIENCE)
    finally:
        flooding.cancel()
    assert replay.messages == 1


@pytest.mark.parametrize(("call_id", "shown"), [("call_0", "call_0"), (7, "7"), (0, "0"), ("", "")])
async def test_tool_calls_may_be_numbered(
    call_id: Any, shown: str, driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    lines = [update("tool_call", toolCallId=call_id), update("tool_call_update", toolCallId=call_id, status="failed")]
    await driver.start(request_for(agent(session_prompt=[*lines, result({})])))
    await driver.prompt("m1", "hello", (), lambda: None)
    assert [line["tool_call_id"] for line in (*host.of("tool.call"), *host.of("tool.update"))] == [shown, shown]


@pytest.mark.parametrize("call_id", [None, True, {}, ["x"]])
async def test_tool_call_without_an_id_is_reported(
    call_id: Any, driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    await driver.start(request_for(agent(session_prompt=[update("tool_call", toolCallId=call_id), result({})])))
    await driver.prompt("m1", "hello", (), lambda: None)
    assert "without an id" in next(line["text"] for line in host.of("log") if line["level"] == "warning")


@pytest.mark.parametrize(
    ("meta", "parent"),
    [
        ('{"claudeCode": {"parentToolUseId": "toolu_1", "toolName": "Read"}}', "toolu_1"),
        ('{"toolName": "read_file", "parentToolCallId": "call_1", "subagentType": "explorer"}', "call_1"),
        ('{"claudeCode": {"parentToolUseId": null}}', None),
        ('{"claudeCode": "x", "parentToolCallId": 7}', None),
        ("[]", None),
    ],
    ids=["Claude Code", "Qwen Code", "its own call", "other types", "no object"],
)
async def test_call_of_a_sub_agent_names_the_call_that_started_it(
    meta: str, parent: str | None, driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    call = update("tool_call", toolCallId="c").replace('"toolCallId"', f'"_meta": {meta}, "toolCallId"')
    await driver.start(request_for(agent(session_prompt=[call, result({})])))
    await driver.prompt("m1", "hello", (), lambda: None)
    (line,) = host.of("tool.call")
    assert line.get("parent_tool_call_id") == parent


async def test_fields_of_a_tool_call_with_other_types_are_left_out(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    fields: dict[str, Any] = {"title": 5, "status": ["x"], "content": "text", "locations": None}
    odd = update("tool_call", toolCallId="c", **fields).replace('"title"', '"kind": {}, "title"')
    await driver.start(request_for(agent(session_prompt=[odd, result({})])))
    await driver.prompt("m1", "hello", (), lambda: None)
    (line,) = host.of("tool.call")
    assert (line["title"], line["tool_kind"], line["status"], "content" in line) == ("", "other", "pending", False)
