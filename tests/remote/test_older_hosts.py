"""A host daemon of the last release uses one permanent token for each execution."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson

from executors_app.runtimes.remote import Remote
from tests.executors.harness import spec_for
from tests.remote.harness import RemoteHarness
from tests.support import fake_agentctl

MADE = {
    "host_id": "h",
    "pid": 1,
    "boot_id": "b",
    "workspace_path": "/w",
    "worktree_id": "s",
    "worktree_path": "/w",
    "worktree_branch": "kandev/s",
    "found": False,
}


@asynccontextmanager
async def daemon(host: dict[str, Any]) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """Run a daemon that answers ``GET /host`` and ``POST /instances``; yield its URL and the requested instances."""
    orders: list[dict[str, Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        answer: dict[str, Any] = {"host_id": "h", "version": 1, "boot_id": "b", **host}
        if head.startswith(b"POST"):
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            orders.append(orjson.loads(await reader.readexactly(length)))
            answer = MADE
        writer.write(fake_agentctl.http_response(200, orjson.dumps(answer), "Content-Type: application/json"))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", orders


async def test_older_host_gets_its_permanent_token(harness: RemoteHarness) -> None:
    async with daemon({}) as (url, orders):
        spec = spec_for(harness)
        launched = await Remote().launch(replace(spec, config={"url": url, "token_file": "machine.token"}))
    assert [one["token"] for one in orders] == [spec.auth_token]
    assert launched.state == {"host": "h"}


async def test_current_host_never_receives_the_secret(harness: RemoteHarness) -> None:
    async with daemon({"launch_tokens": True}) as (url, orders):
        spec = spec_for(harness)
        await Remote().launch(replace(spec, config={"url": url, "token_file": "machine.token"}))
    assert spec.auth_token not in str(orders)
