"""Every tool of the MCP server, from the request to its answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from sessions_app.mcp_server.tools import TOOLS
from tests.api.world import PERMISSION, World, make_world
from tests.entrances.shapes import SIZES, many_fields, mixture, nested
from tests.growth import measure_growth
from tests.mcp_server.clients import http_client, new_token

pytestmark = pytest.mark.any_database  # only the processor time of our own processes is measured

HEADERS = {"Accept": "application/json, text/event-stream"}
TEXTS = ("text", "title", "prompt", "client_key", "message_id", "option_id", "resume_token")


@pytest.fixture
def world(transactional_db: None) -> World:
    """Return the rows of a session, which other threads can see."""
    return make_world()


def call_of(tool: Any, world: World, size: int) -> bytes:
    """Return a call with about ``size`` characters of arguments."""
    known = tool.arguments_type.model_fields
    ids = {"session_id": str(world.session.id), "permission_id": PERMISSION, "timeout_seconds": 1}
    texts = dict.fromkeys(TEXTS, mixture(size // 3))
    arguments = {name: value for name, value in (texts | ids).items() if name in known}
    unknown = {**many_fields(size // 3), "unknown": nested(size // 3)}
    params = {"name": tool.name, "arguments": unknown | arguments}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_arguments_cost_at_most_in_proportion_to_their_size(world: World, tool: Any) -> None:
    headers = HEADERS | {"Authorization": f"Bearer {new_token(world.member)}", "Content-Type": "application/json"}

    async def post(body: bytes) -> None:
        async with asyncio.timeout(60), http_client(headers) as client:
            answer = await client.post("/mcp", content=body)
        assert answer.status_code < 500

    measure_growth(async_to_sync(post), lambda size: call_of(tool, world, size), sizes=SIZES).assert_bounded()
