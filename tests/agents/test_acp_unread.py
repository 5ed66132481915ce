"""Messages of an agent that cannot be read: nobody waits for them forever."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from executors_app.agentctl.drivers import Driver, StartFailed, TurnFailed
from executors_app.agentctl.drivers.json_rpc import UnreadMessage, describe_unread, find_answers, strip_control
from executors_app.agentctl.process import async_io
from tests.agents.conftest import MakeRequest
from tests.agents.hosts import RecordingHost
from tests.agents.scripts import SESSION, Script, agent, chunk, request, result, update

DEEP = "[" * 5000 + "]" * 5000
MANY = "[" + "1," * 1_000_001 + "1]"
ENDED = result({"stopReason": "end_turn"})


def _ending_with(value: str) -> str:
    return f'{{"jsonrpc": "2.0", "id": $ID, "result": {{"stopReason": "end_turn", "_meta": {value}}}}}'


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (_ending_with(MANY), "too many values"),
        (_ending_with(DEEP), "nested too deeply"),
        (f'{{"result": {{"_meta": {DEEP}}}, "id": $ID, "jsonrpc": "2.0"}}', "nested too deeply"),
        ('{"jsonrpc": "2.0", "id": $ID, "result": {"stopReason": "end_', "not valid JSON"),
    ],
    ids=["many values", "deep", "id at the end", "torn"],
)
async def test_unreadable_end_of_a_turn_fails_the_turn(
    end: str, reason: str, driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    script = agent()
    script["session/prompt"] = [[chunk("agent", "done"), end], [ENDED]]
    await driver.start(request_for(script))

    with pytest.raises(TurnFailed, match=reason):
        await asyncio.wait_for(driver.prompt("m1", "hello", (), lambda: None), 60)

    assert host.agent_text() == "done"
    assert await driver.prompt("m2", "again", (), lambda: None) == "end_turn"


async def test_unreadable_answer_fails_the_start(driver: Driver, request_for: MakeRequest) -> None:
    made = f'{{"jsonrpc": "2.0", "id": $ID, "result": {{"sessionId": "{SESSION}", "_meta": {DEEP}}}}}'

    with pytest.raises(StartFailed, match="an answer that cannot be read"):
        await asyncio.wait_for(driver.start(request_for(agent(session_new=[made]))), 60)


async def test_answer_beyond_the_limit_of_a_line_fails_the_turn(
    driver: Driver, request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_io.LineSplitter.__init__, "__defaults__", (10_000,))
    await driver.start(request_for(agent(session_prompt=[_ending_with(f'"{"x" * 20_000}"')])))

    with pytest.raises(TurnFailed, match="too long"):
        await asyncio.wait_for(driver.prompt("m1", "hello", (), lambda: None), 60)


@pytest.mark.parametrize("request_id", [7, "seven"])
async def test_unreadable_request_is_refused_and_reported(
    request_id: Any,
    driver: Driver,
    host: RecordingHost,
    request_for: MakeRequest,
    read_by_agent: Callable[[], list[dict[str, Any]]],
) -> None:
    permission_request = request(request_id, "session/request_permission", {"toolCall": "$DEEP"}).replace(
        '"$DEEP"', DEEP
    )
    await driver.start(request_for(_answered(permission_request)))

    await asyncio.wait_for(driver.prompt("m1", "hello", (), lambda: None), 60)

    refusal = read_by_agent()[-1]
    assert (refusal["id"], refusal["error"]["code"]) == (request_id, -32600)
    assert [line["data"]["reason"] for line in host.of("log") if line["level"] == "warning"] == ["not a JSON object"]


def _answered(request_line: str) -> Script:
    """Return an agent that asks in its turn, and ends the turn when it is answered."""
    return agent(session_prompt=[request_line], answer=[ENDED.replace("$ID", "3")])


async def test_messages_in_one_line_are_all_read(driver: Driver, host: RecordingHost, request_for: MakeRequest) -> None:
    line = f"{chunk('agent', 'one ')}{chunk('agent', 'two')} {ENDED}"
    await driver.start(request_for(agent(session_prompt=[line])))

    assert await asyncio.wait_for(driver.prompt("m1", "hello", (), lambda: None), 60) == "end_turn"
    assert host.agent_text() == "one two"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("\x1b[0m", ""),
        ("\x1b]0;working\x07", ""),
        ("\x1b[2K\r", "\x1b[?25h"),
        ("\ufeff\x1b[31m", "\x1b[0m\r"),
        ("\x00", ""),
    ],
    ids=["colour", "title", "erased line", "byte order mark", "NUL"],
)
async def test_control_sequences_around_a_message_cost_nothing(
    before: str, after: str, driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    lines = [f"{before}{line}{after}" for line in (chunk("agent", "said"), ENDED)]
    await driver.start(request_for(agent(session_prompt=list(lines))))

    assert await asyncio.wait_for(driver.prompt("m1", "hello", (), lambda: None), 60) == "end_turn"
    assert host.agent_text() == "said"
    assert not [line for line in host.of("log") if line["level"] == "warning"]


async def test_text_without_a_line_end_hides_no_answer(
    driver: Driver, host: RecordingHost, request_for: MakeRequest
) -> None:
    started = result({"protocolVersion": 1, "agentCapabilities": {}})
    made = result({"sessionId": SESSION})
    script = agent(session_new=[f"Loading... {made}"], session_prompt=[f"(node:7) Warning: old{ENDED}"])
    script["initialize"] = [[f"Loaded cached credentials.{started}"]]
    await driver.start(request_for(script))

    assert await asyncio.wait_for(driver.prompt("m1", "hello", (), lambda: None), 60) == "end_turn"
    warnings = [line["data"]["reason"] for line in host.of("log") if line["level"] == "warning"]
    assert warnings == ["text before an answer"] * 3


@pytest.mark.parametrize("unit", [b"\x1b] \x07", b"\x1b[", b"\x1b", b"\x1b]0;", b"\x1b[0m "])
def test_any_control_sequences_are_stripped_at_once(unit: bytes) -> None:
    line = b"x" + unit * 5000
    assert strip_control(line).startswith(b"x")


@pytest.mark.parametrize(
    "line",
    [
        'received {"jsonrpc":"2.0","id":3,"result":{"outcome":{"outcome":"selected","optionId":"yes"}}}',
        'received {"jsonrpc":"2.0","id":3,"error":{"code":-32601,"message":"Method not found"}}',
        f"sent {chunk('agent', 'said')}",
        'sent {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"result":{"stopReason":"end_turn"}}}',
        f"{'x' * 2000}{ENDED.replace('$ID', '3')}",
        'said "{" and {"id": 3',
    ],
)
def test_traces_of_messages_are_no_answers(line: str) -> None:
    assert find_answers(line.encode()) == []


def _error_without_id(code: int) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "no"}})


@pytest.mark.parametrize("code", [-32700, -32600])
async def test_error_of_an_agent_that_cannot_read_the_prompt_fails_the_turn(
    code: int, driver: Driver, request_for: MakeRequest
) -> None:
    await driver.start(request_for(agent(session_prompt=[_error_without_id(code)])))

    with pytest.raises(TurnFailed, match="no"):
        await asyncio.wait_for(driver.prompt("m1", "hello", (), lambda: None), 60)


@pytest.mark.parametrize(
    "lines",
    [[_error_without_id(-32601)], [chunk("agent", "said"), _error_without_id(-32700)]],
    ids=["of a notification", "after output"],
)
async def test_error_without_an_id_fails_no_turn_that_has_begun(
    lines: list[str], driver: Driver, request_for: MakeRequest
) -> None:
    await driver.start(request_for(agent(session_prompt=[*lines, ENDED])))

    assert await asyncio.wait_for(driver.prompt("m1", "hello", (), lambda: None), 60) == "end_turn"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"jsonrpc":"2.0","id":3,"result":{"id":4', UnreadMessage(3, is_request=False)),
        ('{"id":3,"error":{', UnreadMessage(3, is_request=False)),
        ('{"jsonrpc": "2.0", "id": "a-1", "method": "x", "params": {', UnreadMessage("a-1", is_request=True)),
        ('{"jsonrpc":"2.0","method":"x","id":5,"params":', UnreadMessage(5, is_request=True)),
        ('{"jsonrpc":"2.0","result":{},"id":3}', UnreadMessage(3, is_request=False)),
        ('{"jsonrpc":"2.0","result":{"a":{"id":3},"id":4', None),
        (json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": {"id": 3}}), None),
        (update("plan", entries=[{"id": 3}]), None),
        ('{"params":{},"id":3}', None),
        ("null", None),
        ("", None),
    ],
)
def test_unread_message_is_known_by_its_ends(line: str, expected: UnreadMessage | None) -> None:
    assert describe_unread(line.encode()) == expected
