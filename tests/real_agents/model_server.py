"""A language model for tests: a loopback server that real agents use.

It serves the APIs of codex-acp (OpenAI responses), opencode (OpenAI chat completions) and Claude Code (Anthropic
messages). The last user text of a request decides the answer:

- *what was the word?*: the word of the last ``remember the word X`` in the request's history, else ``NO-CONTEXT``. So
the answer shows whether the agent has its context.

- *HOLD*: ``ok`` when the test calls `ModelServer.release`; until then the turn is open.

- *BUSY*: 503, until the test calls `ModelServer.release`.

- *RUN command*, *APPROVAL, RUN command*, *QUESTION*: a call of the tool for it (`model_tools`), and ``ok`` when its
result arrives.

- anything else: ``ok``.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from aiohttp import web

from tests.real_agents.model_tools import ToolCall, offered_tools, wanted_call
from tests.waiting import PATIENCE

Json = Mapping[str, Any]

NO_CONTEXT: Final = "NO-CONTEXT"
TOOL_RESULT: Final = "tool"
"""The role of a tool's result in every API."""
_WORD: Final = re.compile(r"remember the word[:\s]+[\"'*`]*([\w-]+)", re.IGNORECASE)
_ADDED_BY_AGENT: Final = re.compile(r"<(system-reminder|environment_context|env|user_instructions)>.*?</\1>", re.DOTALL)
_USAGE: Final = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}


@dataclass
class ModelServer:
    """A running server; ``user_texts`` has the last user text of each request, oldest first."""

    loop: asyncio.AbstractEventLoop
    released: asyncio.Event = field(default_factory=asyncio.Event)
    user_texts: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """All messages of every request, joined to one text each."""
    read: list[str] = field(default_factory=list)
    """What a model reads of every request: its tools, its instructions and all messages, in the order of a cache."""
    calls: list[ToolCall] = field(default_factory=list)
    """The tools that the model has called."""
    images: list[str] = field(default_factory=list)
    """The images of all requests, in base64."""
    url: str = ""
    """The OpenAI base URL, ending in ``/v1``."""

    @property
    def holding(self) -> bool:
        """Return whether a request with *HOLD* has arrived and has not been released."""
        return any("HOLD" in text for text in self.user_texts) and not self.released.is_set()

    def heard_about(self, word: str) -> list[str]:
        """Return the requests that mention ``word``, which identifies one agent if only that agent was told it."""
        return [request for request in self.requests if word in request]

    def holds(self, word: str) -> bool:
        """Return whether a request with *HOLD* and ``word`` has arrived and has not been released."""
        return any("HOLD" in text and word in text for text in self.user_texts) and not self.released.is_set()

    def release(self) -> None:
        """Answer every held request, and later ones at once."""
        self.loop.call_soon_threadsafe(self.released.set)

    def hold(self) -> None:
        """Hold requests with *HOLD* again."""
        self.loop.call_soon_threadsafe(self.released.clear)

    async def answer(self, body: Json, items: Any) -> str | ToolCall:
        """Return the model's answer to the request ``body`` with the messages ``items``, or the call of a tool."""
        messages, tools = _messages(items), offered_tools(body)
        self.read.append(_read_by_a_model(body, items))
        self.requests.append("\n".join(text for _, text in messages))
        texts = [_ADDED_BY_AGENT.sub("", text).strip() for role, text in messages if role == "user"]
        last = next((text for text in reversed(texts) if text), "")
        self.user_texts.append(last)
        if re.search("what was the word", last, re.IGNORECASE):
            words = [word for _, text in messages for word in _WORD.findall(text)]
            return words[-1] if words else NO_CONTEXT
        if "HOLD" in last:
            await self.released.wait()
        if "BUSY" in last and not self.released.is_set():
            raise web.HTTPServiceUnavailable(text=json.dumps({"error": {"message": "overloaded", "code": 503}}))
        call = None if messages and messages[-1][0] == TOOL_RESULT else wanted_call(last, tools)
        if call is not None:
            self.calls.append(call)
        return call or "ok"


@contextmanager
def running_model(address: str = "127.0.0.1") -> Iterator[ModelServer]:
    """Run a model server on a free port of an address of this machine, in a separate thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="model-server")
    thread.start()
    server = ModelServer(loop)
    runner = asyncio.run_coroutine_threadsafe(_listen(server, address), loop).result(10)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()


_SERVER: Final = web.AppKey("server", ModelServer)
_IMAGE: Final = re.compile(r"(iVBORw0KGgo[A-Za-z0-9+/=]*)")
"""A PNG image."""


async def _listen(server: ModelServer, address: str) -> web.AppRunner:
    app = web.Application(client_max_size=64 * 2**20, middlewares=[_note_images])
    app[_SERVER] = server
    app.router.add_get("/v1/models", _models)
    app.router.add_post("/v1/chat/completions", partial(_chat, server))
    app.router.add_post("/v1/responses", partial(_responses, server))
    app.router.add_post("/v1/messages", partial(_anthropic, server))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, address, 0).start()
    server.url = f"http://{address}:{runner.addresses[0][1]}/v1"
    return runner


def _text(content: Any) -> str:
    """Return the text of a message's content, whatever its nesting."""
    if isinstance(content, list):
        return "\n".join(map(_text, content))
    if isinstance(content, dict):
        return _text(content.get("text") or content.get("content") or "")
    return content if isinstance(content, str) else ""


def _read_by_a_model(body: Json, items: Any) -> str:
    """Return the parts of a request that a model reads, as JSON: no ids of messages and no marks for the cache."""
    if isinstance(items, list):
        items = [{key: value for key, value in item.items() if key != "id"} for item in items]
    parts = (body.get("tools"), body.get("system") or body.get("instructions"), items)
    return json.dumps([_without_cache_marks(part) for part in parts])


def _without_cache_marks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_cache_marks(inner) for key, inner in value.items() if key != "cache_control"}
    if isinstance(value, list):
        return [_without_cache_marks(inner) for inner in value]
    return value


def _messages(items: Any) -> list[tuple[str, str]]:
    if isinstance(items, str):
        return [("user", items)]
    return [(_role(item), _text(item.get("content"))) for item in items]


def _role(item: Json) -> str:
    content = item.get("content")
    parts = content if isinstance(content, list) else ()
    if str(item.get("type", "")).endswith("_output") or any(part.get("type") == "tool_result" for part in parts):
        return TOOL_RESULT
    return str(item.get("role", ""))


@web.middleware
async def _note_images(request: web.Request, handler: Any) -> Any:
    request.app[_SERVER].images += _IMAGE.findall(await request.text())
    return await handler(request)


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "mock", "object": "model", "owned_by": "tests"}]})


async def _chat(server: ModelServer, request: web.Request) -> web.StreamResponse:
    body = await request.json()
    answer = await server.answer(body, body.get("messages", []))
    base = {"id": _new_id("chat"), "created": 0, "model": "mock"}
    message: dict[str, Any] = {"role": "assistant", "content": answer}
    end = "stop"
    if isinstance(answer, ToolCall):
        function = {"name": answer.name, "arguments": json.dumps(answer.arguments)}
        call = {"index": 0, "id": _new_id("call"), "type": "function", "function": function}
        message, end = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": end}
        return web.json_response({**base, "object": "chat.completion", "choices": [choice], "usage": _chat_usage()})
    base["object"] = "chat.completion.chunk"
    stream = await _open_stream(request)
    for delta, reason in ((message, None), ({}, end)):
        await _send(stream, {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
    await _send(stream, {**base, "choices": [], "usage": _chat_usage()})
    await stream.write(b"data: [DONE]\n\n")
    return stream


def _chat_usage() -> Json:
    return {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}


async def _responses(server: ModelServer, request: web.Request) -> web.StreamResponse:
    body = await request.json()
    answer = await server.answer(body, body.get("input", []))
    item: dict[str, Any]
    if isinstance(answer, ToolCall):
        item = {"type": "function_call", "id": _new_id("item"), "call_id": _new_id("call"), "name": answer.name}
        item |= {"arguments": json.dumps(answer.arguments), "status": "completed"}
    else:
        part = {"type": "output_text", "text": answer, "annotations": []}
        item = {"type": "message", "id": _new_id("item"), "role": "assistant", "status": "completed", "content": [part]}
    response = {
        "id": _new_id("response"),
        "object": "response",
        "created_at": 0,
        "model": "mock",
        "status": "completed",
    }
    done = {**response, "output": [item], "usage": _USAGE}
    if not body.get("stream"):
        return web.json_response(done)
    where = {"output_index": 0, "content_index": 0, "item_id": item["id"]}
    text_events: list[Json] = [
        {"type": "response.output_text.delta", **where, "delta": answer},
        {"type": "response.output_text.done", **where, "text": answer},
    ]
    events: list[Json] = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        *([] if isinstance(answer, ToolCall) else text_events),
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": done},
    ]
    stream = await _open_stream(request)
    for event in events:
        await _send(stream, event)
    return stream


async def _anthropic(server: ModelServer, request: web.Request) -> web.StreamResponse:
    body = await request.json()
    answer = await server.answer(body, body.get("messages", []))
    usage = {"input_tokens": 10, "output_tokens": 2}
    message = {
        "id": _new_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": body.get("model", "mock"),
        "usage": usage,
    }
    reason = "tool_use" if isinstance(answer, ToolCall) else "end_turn"
    if isinstance(answer, ToolCall):
        block = {"type": "tool_use", "id": _new_id("toolu"), "name": answer.name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(answer.arguments)}
    else:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": answer}
    if not body.get("stream"):
        content = {**block, "input": answer.arguments} if isinstance(answer, ToolCall) else {**block, "text": answer}
        return web.json_response({**message, "content": [content], "stop_reason": reason, "stop_sequence": None})
    stream = await _open_stream(request)
    begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    end = {"stop_reason": reason, "stop_sequence": None}
    for event in (
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ):
        await _send(stream, event)
    return stream


def _new_id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:12]}"


async def _open_stream(request: web.Request) -> web.StreamResponse:
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await stream.prepare(request)
    return stream


async def _send(stream: web.StreamResponse, event: Json) -> None:
    name = f"event: {event['type']}\n" if "type" in event else ""
    await stream.write(f"{name}data: {json.dumps(event)}\n\n".encode())
