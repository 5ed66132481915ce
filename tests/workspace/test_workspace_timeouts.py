"""Files and git of a workspace: slow responses are awaited, a silent agentctl is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.wire.errors import AgentctlUnreachable
from sessions_app.workspace.services.workspace import _while_it_answers
from tests.support import fake_agentctl
from tests.waiting import PATIENCE

JSON = "Content-Type: application/json"


@asynccontextmanager
async def served_by(answers: Callable[[bytes], Any]) -> AsyncIterator[AgentctlClient]:
    """Yield a client of a server that answers each path with the result of ``answers``."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
        try:
            writer.write(fake_agentctl.http_response(200, await answers(path), JSON))
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield AgentctlClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "token", "execution")


async def test_slow_answer_is_waited_for_while_agentctl_is_healthy(settings: Any) -> None:
    settings.KANDEV_SWEEP_TIMEOUT = 2.0
    requests, enough = [0], asyncio.Event()

    async def answer_slowly(path: bytes) -> bytes:
        if path == b"/health":
            requests[0] += 1
            if requests[0] == 2:
                enough.set()
            return b'{"status": "ok"}'
        await enough.wait()
        return b'{"commits": []}'

    async with served_by(answer_slowly) as client:
        assert await _while_it_answers(client, lambda one: one.git("log")) == {"commits": []}
    assert requests[0] >= 2


async def test_silent_agentctl_is_not_waited_for(settings: Any) -> None:
    settings.KANDEV_SWEEP_TIMEOUT = 0.5
    async with fake_agentctl.hanging_server() as url, asyncio.timeout(PATIENCE):
        with pytest.raises(AgentctlUnreachable) as refused:
            await _while_it_answers(AgentctlClient(url, "token", "execution"), lambda one: one.list_files(""))
    assert refused.value.details["reason"] == "timeout"
