"""Messages of the driver and the demo agent are checked against the protocol's own schema."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from acp import schema
from acp.schema import BaseModel

from executors_app.agentctl.drivers import Driver, StartFailed
from executors_app.agentctl.drivers.json_rpc import decode_message, encode_message
from tests.agents.conftest import MakeRequest
from tests.agents.hosts import RecordingHost
from tests.agents.scripts import SESSION, agent, error, request, result
from tests.agents.test_demo_agent import Client
from tests.waiting import eventually_async

SENT: dict[str, type[BaseModel]] = {
    "initialize": schema.InitializeRequest,
    "session/new": schema.NewSessionRequest,
    "session/load": schema.LoadSessionRequest,
    "session/resume": schema.ResumeSessionRequest,
    "session/list": schema.ListSessionsRequest,
    "session/set_mode": schema.SetSessionModeRequest,
    "session/set_config_option": schema.SetSessionConfigOptionSelectRequest,
    "session/prompt": schema.PromptRequest,
    "session/cancel": schema.CancelNotification,
}
SERVERS = [
    {"name": "files", "command": "/bin/files", "env": {"LEVEL": 1}},
    {"name": "web", "url": "http://127.0.0.1:1/mcp", "headers": {"X-Key": "k"}},
]
OPTIONS = [
    {
        "id": "model",
        "name": "Model",
        "category": "model",
        "type": "select",
        "currentValue": "small",
        "options": [{"value": "big", "name": "Big"}],
    }
]
MODES = {"currentModeId": "build", "availableModes": [{"id": "plan", "name": "Plan"}]}
QUESTION = {
    "sessionId": SESSION,
    "toolCall": {"toolCallId": "c1", "title": "rm"},
    "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}],
}


def _check(model: type[BaseModel], body: Any) -> None:
    """Check that a message is valid and has no field unknown to the schema."""
    assert model.model_validate(body).model_dump(by_alias=True, exclude_unset=True, mode="json") == body


async def test_driver_messages_conform_to_the_schema(
    driver: Driver,
    host: RecordingHost,
    request_for: MakeRequest,
    read_by_agent: Callable[[], list[dict[str, Any]]],
) -> None:
    opened = result({"sessionId": SESSION, "configOptions": OPTIONS, "modes": MODES})
    asks = request("q", "session/request_permission", QUESTION)
    script = {
        **agent(load=True, resume=True, also=("list", "additionalDirectories"), session_new=[opened]),
        "session/load": [[result({})]],
        "session/resume": [[result({})]],
        "session/list": [[result({"sessions": [], "nextCursor": "2"})], [result({"sessions": []})]],
        "session/set_mode": [[result({})]],
        "session/set_config_option": [[result({"configOptions": []})]],
        "session/prompt": [[asks]],
        "session/cancel": [[result({"stopReason": "cancelled"}).replace("$ID", "5")]],
    }
    wishes = {"model": "big", "mode": "plan", "mcp_servers": SERVERS, "additional_directories": ["/srv/other"]}
    for strategy, prefer_load in (("native", True), ("native", False), ("fresh", True)):
        restore = {"strategy": strategy, "prefer_load": prefer_load, "resume_token": SESSION}
        await driver.stop(0)
        await driver.start(request_for(script, **wishes, **restore))
    image = {"type": "resource_link", "uri": "file:///plan.md", "name": "plan.md"}
    turn = asyncio.create_task(driver.prompt("m1", "look", [image], lambda: None))
    (_, answer), *_ = await eventually_async(lambda: host.questions)
    answer.set_result("yes")
    await eventually_async(lambda: any("result" in message for message in read_by_agent()))
    await driver.cancel()
    assert await turn == "cancelled"
    await driver.stop(0)
    locked = {**script, "session/load": [[error(-32603, "locked")]]}
    with pytest.raises(StartFailed):
        await driver.start(request_for(locked, strategy="native", resume_token=SESSION))

    messages = read_by_agent()
    assert {message["method"] for message in messages if "method" in message} == set(SENT)
    for message in messages:
        assert message["jsonrpc"] == "2.0"
        if "method" in message:
            _check(SENT[message["method"]], message["params"])
        else:
            _check(schema.RequestPermissionResponse, message["result"])


def test_demo_agent_messages_conform_to_the_schema(tmp_path: Path) -> None:
    client = Client(tmp_path / "home", tmp_path)
    try:
        _check(schema.InitializeResponse, client.call("initialize", protocolVersion=1)["result"])
        answer = client.call("session/new", cwd=str(tmp_path), mcpServers=[])["result"]
        _check(schema.NewSessionResponse, answer)
        client.conversation = answer["sessionId"]
        client.begin("tool\nwrite a.txt words\nhello\nmake a change")
        while not client.permission_requests:
            client.read()
        _check(schema.RequestPermissionRequest, client.permission_requests[0]["params"])
        client.send(
            id=client.permission_requests[0]["id"], result={"outcome": {"outcome": "selected", "optionId": "allow"}}
        )
        _check(schema.PromptResponse, client.until_answer()["result"])
        _check(schema.LoadSessionResponse, client.load(client.conversation)["result"])
    finally:
        client.close()

    assert {each["sessionUpdate"] for each in client.updates} == {
        "available_commands_update",
        "user_message_chunk",
        "agent_message_chunk",
        "agent_thought_chunk",
        "plan",
        "tool_call",
        "tool_call_update",
    }
    for update in client.updates:
        _check(schema.SessionNotification, {"sessionId": client.conversation, "update": update})


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b"nonsense", None),
        (b'{"a": "\xff"}', {"a": "\ufffd"}),
        (b'{"a": "\\ud83d"}', {"a": "\ufffd"}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        (b"[" * 200_000, None),
        (b'{"a": 1', None),
    ],
)
def test_message_is_decoded_as_far_as_it_is_valid(line: bytes, value: Any) -> None:
    assert decode_message(line) == value


@pytest.mark.parametrize("value", [{"id": 10**30}, {"text": "half \ud83d"}, {"text": "two\nlines"}])
def test_every_message_is_encoded_as_one_line_of_json(value: Any) -> None:
    assert b"\n" not in encode_message(value)
    assert json.loads(encode_message(value)) == value
