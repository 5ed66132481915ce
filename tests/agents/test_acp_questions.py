"""Questions of ACP agents: forms and links, their answers, and withdrawn requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from acp import schema
from pydantic import TypeAdapter

from executors_app.agentctl.drivers import Driver
from tests.agents.conftest import MakeRequest
from tests.agents.hosts import RecordingHost
from tests.agents.scripts import SESSION, agent, request, result
from tests.waiting import eventually_async

ReadByAgent = Callable[[], list[dict[str, Any]]]
FORM = {"type": "object", "properties": {"name": {"type": "string", "title": "Name"}}, "required": ["name"]}
QUESTION = {"sessionId": SESSION, "toolCallId": "c1", "mode": "form", "message": "Which?", "requestedSchema": FORM}
LINK = {"sessionId": SESSION, "mode": "url", "message": "Log in", "url": "https://example.org/", "elicitationId": "e1"}
UNKNOWN: list[Any] = [None, {}, {"requestId": "x"}, {"requestId": []}]
TURN_ENDS = result({"stopReason": "end_turn"}).replace("$ID", "3")


def notification(method: str, params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params})


async def pose_question(driver: Driver, host: RecordingHost, request_for: MakeRequest, *lines: str) -> Any:
    """Start a turn in which the agent sends these lines; return the turn, the question and its answer."""
    await driver.start(request_for(agent(session_prompt=list(lines), answer=[TURN_ENDS])))
    turn = asyncio.create_task(driver.prompt("m1", "hello", (), lambda: None))
    (question, answer), *_ = await eventually_async(lambda: host.forms)
    return turn, question, answer


async def test_initialize_advertises_forms_and_links(
    driver: Driver, request_for: MakeRequest, read_by_agent: ReadByAgent
) -> None:
    await driver.start(request_for(agent()))

    assert read_by_agent()[0]["params"]["clientCapabilities"]["elicitation"] == {"form": {}, "url": {}}


@pytest.mark.parametrize(
    ("params", "given", "expected"),
    [
        (QUESTION, ("accept", {"name": "heron"}), {"action": "accept", "content": {"name": "heron"}}),
        (QUESTION, ("decline", {}), {"action": "decline"}),
        (QUESTION, ("cancel", {}), {"action": "cancel"}),
        (LINK, ("accept", {}), {"action": "accept"}),
    ],
)
async def test_answer_of_a_person_is_sent_as_acp_defines_it(
    params: Any,
    given: tuple[str, Any],
    expected: Any,
    driver: Driver,
    host: RecordingHost,
    request_for: MakeRequest,
    read_by_agent: ReadByAgent,
) -> None:
    asks = request("q", "elicitation/create", params)
    turn, question, answer = await pose_question(driver, host, request_for, asks)
    assert question["tool_call"]["title"] == params["message"]
    answer.set_result(given)
    await turn

    sent = read_by_agent()[-1]
    assert (sent["id"], sent["result"]) == ("q", expected)
    TypeAdapter(schema.CreateElicitationResponse).validate_python(sent["result"])


async def test_question_may_belong_to_a_numbered_tool_call(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    asks = request("q", "elicitation/create", {**QUESTION, "toolCallId": 7})
    turn, question, answer = await pose_question(driver, host, request_for, asks)
    answer.set_result(("decline", {}))
    await turn

    assert question["tool_call"]["tool_call_id"] == "7"


@pytest.mark.parametrize(
    "params",
    [
        None,
        {**QUESTION, "sessionId": None},
        {**QUESTION, "mode": "hologram"},
        {**QUESTION, "requestedSchema": {"type": "array"}},
        {**LINK, "url": "javascript:alert(1)"},
    ],
)
async def test_invalid_question_is_refused_and_reported(
    params: Any, driver: Driver, host: RecordingHost, request_for: MakeRequest, read_by_agent: ReadByAgent
) -> None:
    asks = request(9, "elicitation/create", params)
    await driver.start(request_for(agent(session_prompt=[asks], answer=[TURN_ENDS])))

    await driver.prompt("m1", "hello", (), lambda: None)

    assert read_by_agent()[-1]["error"]["code"] == -32602
    assert host.forms == []
    assert [line["level"] for line in host.of("log")] == ["warning"]


@pytest.mark.parametrize("method", ["elicitation/create", "session/request_permission"])
async def test_withdrawn_request_is_answered_as_cancelled(
    method: str, driver: Driver, host: RecordingHost, request_for: MakeRequest, read_by_agent: ReadByAgent
) -> None:
    permission = {"toolCall": {"toolCallId": "c1"}, "options": [{"optionId": "yes", "name": "Yes"}]}
    params = QUESTION if method == "elicitation/create" else permission
    lines: list[str | int] = [request("q", method, params), notification("$/cancel_request", {"requestId": "q"})]
    await driver.start(request_for(agent(session_prompt=lines, answer=[TURN_ENDS])))

    await driver.prompt("m1", "hello", (), lambda: None)

    assert read_by_agent()[-1]["error"]["code"] == -32800
    assert [answer.cancelled() for _, answer in host.forms] + [one.cancelled() for _, one in host.questions] == [True]


async def test_other_requests_cannot_be_withdrawn_by_an_unknown_id(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    others = [notification("$/cancel_request", params) for params in UNKNOWN]
    turn, _, answer = await pose_question(
        driver, host, request_for, request("q", "elicitation/create", QUESTION), *others
    )
    assert not answer.done()
    answer.set_result(("accept", {"name": "x"}))
    assert await turn == "end_turn"


async def test_completed_link_is_passed_on(driver: Driver, host: RecordingHost, request_for: MakeRequest) -> None:
    done = notification("elicitation/complete", {"elicitationId": "e1"})
    turn, _, answer = await pose_question(driver, host, request_for, request("q", "elicitation/create", LINK), done)
    await eventually_async(lambda: host.completed == ["e1"])
    answer.set_result(("accept", {}))
    assert await turn == "end_turn"


async def test_demo_agent_repeats_the_answer(driver: Driver, host: RecordingHost, request_for: MakeRequest) -> None:
    await driver.start(request_for("demo"))
    turn = asyncio.create_task(driver.prompt("m1", "question", (), lambda: None))
    (question, answer), *_ = await eventually_async(lambda: host.forms)

    answer.set_result(("accept", {"engine": "sqlite", "name": "heron"}))

    assert await turn == "end_turn"
    assert host.agent_text() == 'The answer was {"engine": "sqlite", "name": "heron"}.\n'
    assert question["question"]["order"] == ["engine", "name", "copies", "extras", "encrypted"]


async def test_question_in_an_own_form_is_declined_and_shown(
    driver: Driver, host: RecordingHost, request_for: MakeRequest, read_by_agent: ReadByAgent
) -> None:
    params = {"sessionId": SESSION, "questions": [{"question": "Which colour?", "options": []}]}
    end = result({"stopReason": "end_turn", "_meta": {"inputTokens": 7, "outputTokens": 2, "requestId": "x"}})
    asking = request("q1", "_x.ai/ask_user_question", params)
    await driver.start(request_for(agent(session_prompt=[asking, end])))
    assert await driver.prompt("m1", "go", (), lambda: None) == "end_turn"
    assert [line["usage"] for line in host.of("usage")] == [{"inputTokens": 7, "outputTokens": 2}]
    warnings = [line["text"] for line in host.of("log") if line["level"] == "warning"]
    assert any("declined: Which colour?" in text for text in warnings)
    answers = await eventually_async(lambda: [each for each in read_by_agent() if each.get("id") == "q1"])
    assert answers[0]["error"]["code"] == -32601
    assert "end the turn" in answers[0]["error"]["message"]
