"""Texts for a running turn of an ACP agent: who takes them, and which answers prove that it did not."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.drivers import Driver, SteeringRefused
from executors_app.agentctl.drivers.acp import AcpDriver
from executors_app.agentctl.drivers.json_rpc import RpcError
from tests.agents.conftest import MakeRequest
from tests.agents.hosts import RecordingHost
from tests.agents.scripts import SESSION, agent, error, result
from tests.waiting import eventually_async

STEERS = {"steering": {"supported": True}}


def steerable_agent(*steering: str, meta: Any = STEERS) -> Any:
    """Return an agent whose turn lasts until it is cancelled, and which answers so to a text for that turn."""
    script = agent(session_prompt=[])
    opened = json.loads(str(script["initialize"][0][0]).replace("$ID", "0"))["result"]
    script["initialize"] = [[result({**opened, "_meta": meta})]]
    script["_session/steering"] = [list(steering)]
    return script


async def in_a_turn(driver: Driver) -> asyncio.Task[str]:
    sent = asyncio.Event()
    turn = asyncio.create_task(driver.prompt("m1", "hello", (), sent.set))
    await sent.wait()
    return turn


@pytest.fixture
def acp(driver: Driver) -> AcpDriver:
    assert isinstance(driver, AcpDriver)
    return driver


@pytest.mark.parametrize(
    ("meta", "steers"),
    [(STEERS, True), ({"steering": {"supported": "yes"}}, False), ({"steering": True}, False), ({}, False), (3, False)],
)
async def test_only_an_announcement_counts(acp: AcpDriver, request_for: MakeRequest, meta: Any, steers: bool) -> None:
    started = await acp.start(request_for(steerable_agent(meta=meta)))
    assert acp.steers is steers
    assert started.capabilities.get("steering", False) is steers


async def test_request_leaves_an_idle_agent_without_a_turn(
    acp: AcpDriver, request_for: MakeRequest, read_by_agent: Any
) -> None:
    await acp.start(request_for(steerable_agent(result({"outcome": "injected"}))))
    turn = await in_a_turn(acp)
    await acp.steer("use tabs", (), lambda: None)
    [asked] = [message for message in read_by_agent() if message["method"] == "_session/steering"]
    assert asked["params"] == {
        "sessionId": SESSION,
        "prompt": [{"type": "text", "text": "use tabs"}],
        "_meta": {"steering": {"idleBehavior": "promptRequired"}},
    }
    turn.cancel()


NOT_TAKEN = [
    result({"outcome": "promptRequired", "reason": "noRunningTurn"}),
    error(-32601, "Method not found"),
    error(-32602, "Invalid params"),
]
UNKNOWN = [
    error(-32603, "Internal error"),
    error(-32600, "Invalid request"),
    result({}),
    result(None),
    result({"outcome": "queued"}),
]


@pytest.mark.parametrize("answer", NOT_TAKEN)
async def test_answers_that_prove_that_it_was_not_taken(acp: AcpDriver, request_for: MakeRequest, answer: str) -> None:
    await acp.start(request_for(steerable_agent(answer)))
    turn = await in_a_turn(acp)
    with pytest.raises(SteeringRefused):
        await acp.steer("use tabs", (), lambda: None)
    turn.cancel()


@pytest.mark.parametrize("answer", UNKNOWN)
async def test_answers_after_which_the_agent_may_have_it(acp: AcpDriver, request_for: MakeRequest, answer: str) -> None:
    await acp.start(request_for(steerable_agent(answer)))
    turn = await in_a_turn(acp)
    with pytest.raises((RpcError, ValueError)):
        await acp.steer("use tabs", (), lambda: None)
    turn.cancel()


async def test_file_that_the_agent_does_not_take_is_refused_before_it_is_sent(
    acp: AcpDriver, request_for: MakeRequest, read_by_agent: Any
) -> None:
    await acp.start(request_for(steerable_agent(result({"outcome": "injected"}))))
    turn = await in_a_turn(acp)
    with pytest.raises(SteeringRefused):
        await acp.steer("look", [{"type": "image", "mimeType": "image/png", "data": "AA=="}], lambda: None)
    assert "_session/steering" not in [message["method"] for message in read_by_agent()]
    turn.cancel()


async def test_demo_agent_answers_the_text_in_the_same_turn(
    acp: AcpDriver, host: RecordingHost, request_for: MakeRequest, tmp_path: Path
) -> None:
    await acp.start(request_for("demo"))
    turn = asyncio.create_task(acp.prompt("m1", "work 1", (), lambda: None))
    await eventually_async(host.agent_text)
    await acp.steer("remember pelican", (), lambda: None)
    assert await turn == "end_turn"
    assert host.agent_text().endswith("I will remember pelican.\n")
    with pytest.raises(SteeringRefused):
        await acp.steer("too late", (), lambda: None)
