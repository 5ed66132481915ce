"""What agents write on their standard output, from the bytes of the pipe to the body of a journal line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from asgiref.sync import async_to_sync

from executors_app.agentctl.drivers.acp_requests import parse_permission_request
from executors_app.agentctl.drivers.acp_updates import ReplayCollector, update_to_journal_line
from executors_app.agentctl.drivers.json_rpc import JsonRpcConnection
from executors_app.wire.token_redaction import TokenRedactor
from tests.entrances.shapes import SIZES, many_fields, mixture, nested
from tests.fuzz.test_agents_words import FakePipes
from tests.growth import measure_growth
from tests.waiting import eventually_async

PIPE = 64 * 1024
"""Bytes that one read of a pipe returns."""
UPDATES = (
    *("agent_message_chunk", "user_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"),
    *("available_commands_update", "current_mode_update", "session_info_update", "usage_update", "unknown"),
)


def update_of(kind: str, size: int) -> dict[str, Any]:
    """Return an update of about ``size`` characters with hostile values in every field that is read."""
    text = mixture(size // 4)
    entries = [{"content": text[:100], "name": text[:100], "status": "pending"} for _ in range(size // 800)]
    return {
        **many_fields(size // 8),
        "sessionUpdate": kind,
        "content": {"type": "text", "text": text, "resource": {"text": text}},
        "entries": entries,
        "availableCommands": entries,
        "rawInput": nested(size // 8),
        "title": text,
        "toolCallId": "t",
        "locations": [{"path": text}],
    }


@pytest.mark.parametrize("kind", UPDATES)
def test_update_costs_at_most_in_proportion_to_its_size(kind: str) -> None:
    """The whole way: lines of the pipe, JSON, the update, the collector of a replay, and redaction of tokens."""
    redactor = TokenRedactor()
    redactor.add_token("a-conversation-id-of-an-agent")

    def handle(method: str, params: Any) -> None:
        replay = ReplayCollector()
        replay.add(params["update"])
        _, body = update_to_journal_line(params["update"])
        redactor.redact(orjson.dumps(body).decode())

    def receive(data: bytes) -> None:
        async_to_sync(read_all)(data, handle)

    measure_growth(receive, lambda size: notification(kind, size), sizes=SIZES).assert_bounded()


def notification(kind: str, size: int) -> bytes:
    """Return an agent's line with one update."""
    params = {"sessionId": "s", "update": update_of(kind, size)}
    return orjson.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}) + b"\n"


async def read_all(data: bytes, handle: Any) -> None:
    """Let a connection read everything that an agent wrote."""
    pipes = FakePipes([data[at : at + PIPE] for at in range(0, len(data), PIPE)])

    async def answer(method: str, params: Any) -> Any:
        return {}

    async def wait_for_room() -> None:
        await asyncio.sleep(0)

    process: Any = SimpleNamespace(stdin=pipes, stdout=pipes)
    wire = JsonRpcConnection(
        process, on_notification=handle, on_request=answer, room=wait_for_room, record=lambda *args, **fields: None
    )
    wire.start_reading()
    await eventually_async(wire.closed.is_set, timeout=60, describe="all input is handled")
    await wire.close()


@pytest.mark.parametrize("shape", [b"[", b'{"a":', b"\\", b'"', b"\n", b"\xff", b"{}\n", b"0"], ids=repr)
def test_bytes_cost_at_most_in_proportion_to_their_number(shape: bytes) -> None:
    measure_growth(
        lambda data: async_to_sync(read_all)(data, lambda method, params: None),
        lambda size: shape * (size // len(shape)),
        sizes=SIZES,
    ).assert_bounded()


def _requests(size: int, *, same_id: bool = False) -> list[bytes]:
    return [
        orjson.dumps({"jsonrpc": "2.0", "id": 1 if same_id else number, "method": "x", "params": {"number": number}})
        for number in range(size // 50)
    ]


SINGLE_LINES: dict[str, Callable[[int], bytes]] = {
    "joined messages": lambda size: b"{}" * (size // 2),
    "joined messages with spaces": lambda size: (b"{}" + b" " * 600) * (size // 10),
    "a batch of requests": lambda size: b"[" + b",".join(_requests(size)) + b"]",
    "joined requests": lambda size: b"".join(_requests(size)),
    "joined requests with one id": lambda size: b"".join(_requests(size, same_id=True)),
}


@pytest.mark.parametrize("kind", SINGLE_LINES)
def test_single_line_with_many_messages_costs_at_most_in_proportion(kind: str) -> None:
    measure_growth(
        lambda data: async_to_sync(read_all)(data, lambda method, params: None),
        lambda size: SINGLE_LINES[kind](size) + b"\n",
        sizes=[size * 4 for size in SIZES],
    ).assert_bounded()


def test_permission_request_costs_at_most_in_proportion_to_its_size() -> None:
    def request_of(size: int) -> dict[str, Any]:
        options = [{"optionId": f"o{number}", "name": mixture(500)} for number in range(size // 1000)]
        call = {"toolCallId": "t", "title": mixture(size // 4), "rawInput": nested(size // 4)}
        return {"options": options, "toolCall": call}

    measure_growth(parse_permission_request, request_of, sizes=SIZES).assert_bounded()
