"""A chat completions provider for tests: a loopback server with prepared answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

KEY: Final = "sk-a-key-that-nobody-may-see"
Handler = Callable[[web.Request, "ChatServer"], Any]


def event(**message: Any) -> bytes:
    """Build one event of a stream from ``text``, ``thought``, ``finish`` or the fields of a chunk."""
    delta = {"content": message.pop("text", None), "reasoning_content": message.pop("thought", None)}
    choice = {"index": 0, "delta": {key: value for key, value in delta.items() if value is not None}}
    choice["finish_reason"] = message.pop("finish", None)
    return b"data: " + json.dumps({"choices": [choice], **message}).encode() + b"\n\n"


DONE: Final = b"data: [DONE]\n\n"


@dataclass
class ChatServer:
    """Requests received and answers to give: one for each request, the last one repeatedly."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    answers: list[Handler] = field(default_factory=list)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client has disconnected from a hanging answer."""

    def texts(self, request: int = -1) -> list[tuple[str, str]]:
        """Return role and text of each message in a request."""
        return [(message["role"], message["content"]) for message in self.requests[request]["messages"]]

    def env(self, **more: str) -> dict[str, str]:
        """Return the environment of a profile that uses this provider."""
        return {"OPENAI_BASE_URL": self.url, "OPENAI_API_KEY": KEY, **more}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        self.requests.append(await request.json())
        self.headers.append(dict(request.headers))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        response: web.StreamResponse = await answer(request, self)
        return response


def says(*pieces: bytes, hangs: bool = False, breaks: bool = False) -> Handler:
    """Build a streamed answer; ``hangs`` stops it after its pieces, ``breaks`` cuts the connection."""

    async def answer(request: web.Request, server: ChatServer) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if hangs:
            try:
                await asyncio.Event().wait()
            finally:
                server.hung_up.set()
        if breaks and request.transport is not None:
            request.transport.abort()
        return response

    return answer


def answer_of(text: str) -> Handler:
    """Build a complete streamed answer."""
    return says(event(text=text), event(finish="stop"), DONE)


def refuses(status: int, body: Any = None, **headers: str) -> Handler:
    """Build an error response without a completion."""

    async def answer(request: web.Request, server: ChatServer) -> web.StreamResponse:
        values = {name.replace("_", "-"): value for name, value in headers.items()}
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text, content_type="application/json", headers=values)

    return answer


@asynccontextmanager
async def chat_server(*answers: Handler) -> AsyncIterator[ChatServer]:
    """Run a provider."""
    server = ChatServer(answers=list(answers) or [answer_of("ok")])
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", server.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    server.url = f"http://127.0.0.1:{port}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()
