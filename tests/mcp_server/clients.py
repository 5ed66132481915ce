"""Clients of the MCP server: the SDK's own, and plain HTTP requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from django.contrib.auth.models import User
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from kandev.asgi import application
from sessions_app.accounts.models import ApiToken
from sessions_app.kernel.database_threads import run_in_database

URL = "http://localhost/mcp"
APPLICATION: Any = application


class ToolFailed(Exception):
    """A tool returned an error: its code, and the whole error."""

    def __init__(self, error: dict[str, Any]):
        super().__init__(f"{error['code']}: {error['message']}")
        self.code, self.error = error["code"], error


def new_token(user: User, scope: str = ApiToken.Scope.WRITE) -> str:
    """Return the key of a new token."""
    return ApiToken.mint(user, "an agent", scope, None)[1]


@asynccontextmanager
async def http_client(headers: dict[str, str], url: str = URL) -> AsyncIterator[httpx2.AsyncClient]:
    """Connect to the application in this process, or to a server."""
    transport = httpx2.ASGITransport(app=APPLICATION) if url == URL else None
    async with httpx2.AsyncClient(transport=transport, headers=headers, timeout=120) as http:
        yield http


@asynccontextmanager
async def connected(key: str, mode: str = "auto", url: str = URL) -> AsyncIterator[Client]:
    """Connect the SDK's client with an API token."""
    async with (
        http_client({"Authorization": f"Bearer {key}"}, url) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


@asynccontextmanager
async def connected_as(user: User, scope: str = ApiToken.Scope.WRITE, mode: str = "auto") -> AsyncIterator[Client]:
    """Connect the SDK's client to the application in this process, as a user."""
    async with connected(await run_in_database(new_token, user, scope), mode) as client:
        yield client


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool; return its structured result, which its text repeats. Raises ToolFailed."""
    result = await client.call_tool(name, arguments)
    (content,) = result.content
    text: dict[str, Any] = json.loads(getattr(content, "text", ""))
    if result.is_error:
        assert result.structured_content is None
        raise ToolFailed(text)
    assert result.structured_content == text
    return text
