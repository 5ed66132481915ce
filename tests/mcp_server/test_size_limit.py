"""A request to ``/mcp`` costs the event loop little, whatever its body contains."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from sessions_app.kernel.database_threads import run_in_database
from sessions_app.mcp_server import size_limit
from sessions_app.mcp_server.size_limit import MAX_MESSAGE
from sessions_app.prompts.services import TEXT_LIMIT
from tests.api.world import World
from tests.mcp_server.clients import http_client, new_token

HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
VERSIONS = ("2025-11-25", "2026-07-28")
LONGEST_PAUSE = 2.0
"""Seconds of processor time for which the event loop may be blocked; 34 before there was a limit."""
ATTEMPTS = 3
"""How often a longer pause is measured: other processes may slow one measurement."""


def call_of(name: str, arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


MANY_KEYS = {f"key{number}": 0 for number in range(400_000)}
HOSTILE: dict[str, bytes] = {
    "unknown arguments": json.dumps(call_of("list_tasks", MANY_KEYS)).encode(),
    "unknown fields of the message": json.dumps({**call_of("list_tasks", {}), **MANY_KEYS}).encode(),
    "metadata": json.dumps({**call_of("list_tasks", {}), "params": {"_meta": MANY_KEYS}}).encode(),
    "an array of messages": json.dumps([call_of("list_tasks", {})] * 10_000).encode(),
    "an argument that is a list": json.dumps(call_of("list_tasks", {"page": list(range(400_000))})).encode(),
    "unknown arguments beside a text": json.dumps(call_of("prompt_session", {"text": "x", **MANY_KEYS})).encode(),
    "nesting": b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + b"[" * 400_000 + b"]" * 400_000 + b"}",
    "no JSON": b"{" * 400_000,
}


@pytest.fixture
async def bearer(served_world: World) -> dict[str, str]:
    return {**HEADERS, "Authorization": f"Bearer {await run_in_database(new_token, served_world.member)}"}


async def post_and_measure(headers: dict[str, str], body: bytes) -> tuple[int, dict[str, Any], float]:
    """Return status, body, and the longest processor time for which the event loop did nothing else."""
    longest, previous = 0.0, time.thread_time()

    async def watch() -> None:
        nonlocal longest, previous
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, previous = max(longest, now - previous), now

    async with http_client(headers) as http:
        watcher = asyncio.create_task(watch())
        answer = await http.post("http://localhost/mcp", content=body)
        watcher.cancel()
    text = answer.text.partition("data: ")[2] or answer.text  # a result is an event of a stream
    return answer.status_code, json.loads(text), longest


async def test_large_message_is_checked_in_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps(call_of("prompt_session", {"text": "x" * 2 * MAX_MESSAGE})).encode()
    threads = []
    check = size_limit._checked

    def check_and_record(large: bytes) -> bytes:
        threads.append(threading.get_ident())
        return check(large)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    monkeypatch.setattr(size_limit, "_checked", check_and_record)
    received = await (await size_limit.receive_message(receive))()
    assert json.loads(received["body"]) == json.loads(body)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", HOSTILE)
async def test_large_message_is_refused_and_blocks_nobody(bearer: dict[str, str], name: str, version: str) -> None:
    await post_and_measure({**bearer, "MCP-Protocol-Version": version}, b"{}")  # imports the SDK
    for attempt in range(1, ATTEMPTS + 1):
        status, body, longest = await post_and_measure({**bearer, "MCP-Protocol-Version": version}, HOSTILE[name])
        assert (status, body["code"]) == (413, "too_large")
        if longest < LONGEST_PAUSE:
            break
        assert attempt < ATTEMPTS, longest


async def test_unknown_arguments_within_the_limit_are_named_in_a_short_error(bearer: dict[str, str]) -> None:
    given = {f"k{number}": 0 for number in range(5_000)}
    body = json.dumps(call_of("list_tasks", given)).encode()
    assert len(body) < MAX_MESSAGE
    await post_and_measure({**bearer, "MCP-Protocol-Version": VERSIONS[0]}, b"{}")
    status, answer, longest = await post_and_measure({**bearer, "MCP-Protocol-Version": VERSIONS[0]}, body)
    error = json.loads(answer["result"]["content"][0]["text"])
    assert (status, error["code"], len(error["details"])) == (200, "validation_error", 10)
    assert "and 4990 more" in error["message"]
    assert longest < LONGEST_PAUSE


async def test_longest_prompt_is_accepted(bearer: dict[str, str], served_world: World) -> None:
    given = {"session_id": str(served_world.session.id), "message_id": "long", "text": "ä" * TEXT_LIMIT}
    body = json.dumps(call_of("prompt_session", given)).encode()
    status, answer, _ = await post_and_measure({**bearer, "MCP-Protocol-Version": VERSIONS[0]}, body)
    assert status == 200
    assert not answer["result"].get("isError"), answer
    prompts = await run_in_database(lambda: list(served_world.session.prompts.values_list("text", flat=True)))
    assert given["text"] in prompts
