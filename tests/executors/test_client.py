"""The client of agentctl: it distinguishes all kinds of invalid responses, and follows none elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from executors_app.agentctl_client.client import AgentctlClient, open_connection_pool
from executors_app.wire.errors import (
    AgentctlForeign,
    AgentctlRefused,
    AgentctlUnreachable,
    ExecutorError,
    StaleGeneration,
)
from executors_app.wire.protocol import CLOSE_STALE_GENERATION, GENERATION_HEADER
from tests.support import fake_agentctl
from tests.waiting import PATIENCE

TOKEN = "the-token"
EXECUTION = "execution-1"


class RecordingAgentctl:
    """A fake agentctl that records requests and answers with ``answer``; its event stream sends ``frames``."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, Any]] = []
        self.headers: list[Any] = []
        self.status = 200
        self.answer: Any = {"execution_id": EXECUTION}
        self.frames: list[str] = []
        self.close_code = 1000
        self.acks: asyncio.Queue[Any] = asyncio.Queue()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers.copy())
        if request.path == "/events" and self.status == 200:
            return await self._stream(request)
        sent = await request.read()
        body = json.loads(sent) if request.content_type == "application/json" and sent else sent
        self.calls.append((request.method, request.path_qs, body))
        return web.json_response(self.answer, status=self.status)

    async def _stream(self, request: web.Request) -> web.WebSocketResponse:
        self.calls.append(("WS", request.path_qs, None))
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        for frame in self.frames:
            await socket.send_str(frame)
        if self.close_code == 1000:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    self.acks.put_nowait(json.loads(message.data))
                    break
        if self.close_code == 1006:
            assert request.transport is not None
            request.transport.abort()
        else:
            await socket.close(code=self.close_code)
        return socket


@asynccontextmanager
async def running(agentctl: RecordingAgentctl) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", agentctl.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def client_of(url: str, **options: Any) -> AgentctlClient:
    return AgentctlClient(url, TOKEN, EXECUTION, generation=7, **options)


CALLS: list[tuple[str, tuple[Any, ...], tuple[str, str, Any]]] = [
    ("status", (), ("GET", "/status", b"")),
    ("start_job", ("a/b", {"script": "true"}), ("POST", "/jobs?wait=0", {"script": "true", "job_id": "a/b"})),
    ("job", ("a/b",), ("GET", "/jobs/a%2Fb?wait=0", b"")),
    ("cancel_job", ("../status",), ("POST", "/jobs/..%2Fstatus/cancel", {})),
    ("start_agent", ({"launch_id": "l"}, 5.0), ("POST", "/agent/start", {"launch_id": "l"})),
    ("stop_agent", (2.0, "i"), ("POST", "/agent/stop", {"grace": 2.0, "intent_id": "i"})),
    (
        "prompt",
        ("m", "hé\n", [{"a": 1}], "continue"),
        ("POST", "/prompt", {"message_id": "m", "text": "hé\n", "attachments": [{"a": 1}], "prompt_kind": "continue"}),
    ),
    ("cancel", ("m", "i"), ("POST", "/cancel", {"message_id": "m", "intent_id": "i"})),
    (
        "change_setting",
        ("c", "mode", True),
        ("POST", "/settings", {"change_id": "c", "setting": "mode", "value": True}),
    ),
    ("answer", ("a/b?", "o"), ("POST", "/permissions/a%2Fb%3F", {"option_id": "o"})),
    ("answer", ("a", None), ("POST", "/permissions/a", {"option_id": None})),
    ("agent_session", (), ("GET", "/agent/session", b"")),
    ("list_files", ("a b",), ("GET", "/files?path=a+b", b"")),
    ("search_files", ("a&b",), ("GET", "/files/search?query=a%26b", b"")),
    ("read_file", ("a&b",), ("GET", "/files/content?path=a%26b", b"")),
    ("write_file", ("x", b"\0data"), ("PUT", "/files/content?path=x", b"\0data")),
    ("git", ("diff",), ("GET", "/git/diff", b"")),
    ("snapshot", (), ("POST", "/snapshot", {})),
    ("shutdown", (True, "i"), ("POST", "/shutdown", {"stop_agent": True, "intent_id": "i"})),
]


@pytest.mark.parametrize(("name", "arguments", "expected"), CALLS, ids=[call[0] for call in CALLS])
async def test_call_sends_token_and_generation(
    name: str, arguments: tuple[Any, ...], expected: tuple[str, str, Any]
) -> None:
    agentctl = RecordingAgentctl()
    async with running(agentctl) as url:
        assert await getattr(client_of(url), name)(*arguments) == {"execution_id": EXECUTION}
    assert agentctl.calls == [expected]
    assert agentctl.headers[0]["Authorization"] == f"Bearer {TOKEN}"
    assert agentctl.headers[0][GENERATION_HEADER] == "7"


async def test_many_clients_share_one_pool_of_connections() -> None:
    agentctl = RecordingAgentctl()
    async with running(agentctl) as url, open_connection_pool() as http:
        clients = [client_of(url, http=http) for _ in range(20)]
        await asyncio.gather(*(one.status() for one in clients))
        assert not http.closed
    assert len(agentctl.calls) == 20


REFUSAL = json.dumps({"code": "busy", "message": "A turn is active.", "details": {}}).encode()
STALE = json.dumps({"code": "stale_generation", "message": "Newer.", "details": {}}).encode()

ANSWERS: list[tuple[str, bytes, type[ExecutorError], str]] = [
    ("wrong token", fake_agentctl.http_response(401, b"{}"), AgentctlForeign, "not_ours"),
    ("forbidden", fake_agentctl.http_response(403, b'{"code": "forbidden_host"}'), AgentctlForeign, "not_ours"),
    ("another web server", fake_agentctl.http_response(404, b"<html>"), AgentctlForeign, "no_json"),
    ("invalid JSON", fake_agentctl.http_response(200, b"hello"), AgentctlForeign, "no_json"),
    ("a JSON list", fake_agentctl.http_response(200, b"[1]"), AgentctlForeign, "no_json"),
    (
        "another execution",
        fake_agentctl.http_response(200, b'{"execution_id": "other"}'),
        AgentctlForeign,
        "other_execution",
    ),
    ("no execution", fake_agentctl.http_response(200, b"{}"), AgentctlForeign, "other_execution"),
    ("a broken proxy", fake_agentctl.http_response(502, b"Bad Gateway"), AgentctlUnreachable, "gateway"),
    ("nothing", b"", AgentctlUnreachable, "closed"),
]


@pytest.mark.parametrize(("answer", "kind", "reason"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
async def test_invalid_response_differs_from_no_response(answer: bytes, kind: type[ExecutorError], reason: str) -> None:
    async with fake_agentctl.answering_server(answer) as url:
        with pytest.raises(kind) as caught:
            await client_of(url).status()
    assert caught.value.details["reason"] == reason


@pytest.mark.parametrize(
    ("status", "body", "kind", "refusal"),
    [(409, REFUSAL, AgentctlRefused, "busy"), (409, STALE, StaleGeneration, "stale_generation")],
)
async def test_refusal_has_the_message_of_agentctl(
    status: int, body: bytes, kind: type[AgentctlRefused], refusal: str
) -> None:
    async with fake_agentctl.answering_server(fake_agentctl.http_response(status, body)) as url:
        with pytest.raises(AgentctlRefused) as caught:
            await client_of(url).prompt("m", "text")
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.refusal) == (status, refusal)
    assert caught.value.details["answer"] == json.loads(body)


NO_JOB = json.dumps({"code": "job_unknown", "message": "No.", "details": {}}).encode()
JOB_CALLS: list[tuple[str, tuple[Any, ...]]] = [("start_job", ("j", {})), ("job", ("j",)), ("cancel_job", ("j",))]


@pytest.mark.parametrize(("name", "arguments"), JOB_CALLS, ids=[name for name, _ in JOB_CALLS])
async def test_unknown_job_is_a_refusal(name: str, arguments: tuple[Any, ...]) -> None:
    async with fake_agentctl.answering_server(fake_agentctl.http_response(404, NO_JOB)) as url:
        with pytest.raises(AgentctlRefused) as unknown:
            await getattr(client_of(url), name)(*arguments)
    assert unknown.value.refusal == "job_unknown"


@pytest.mark.parametrize("url", ["", "not a url", "ftp://127.0.0.1", "http://127.0.0.1:99999"])
async def test_invalid_address_is_unreachable(url: str) -> None:
    with pytest.raises(AgentctlUnreachable):
        await client_of(url).status()


async def test_refused_connection_differs_from_a_timeout() -> None:
    with pytest.raises(AgentctlUnreachable) as caught:
        await client_of(fake_agentctl.refusing_url()).status()
    assert caught.value.details["reason"] == "refused"
    async with fake_agentctl.hanging_server() as url:
        with pytest.raises(AgentctlUnreachable) as caught:
            await client_of(url).status(timeout=0.1)
    assert caught.value.details["reason"] == "timeout"


@pytest.mark.parametrize("path", ["status", "events"])
async def test_no_redirect_is_followed(path: str) -> None:
    elsewhere = RecordingAgentctl()
    async with running(elsewhere) as target:
        redirect = fake_agentctl.http_response(307, b"", f"Location: {target}/{path}")
        async with fake_agentctl.answering_server(redirect) as url:
            with pytest.raises(ExecutorError):
                await (client_of(url).status() if path == "status" else _first_batch(client_of(url)))
    assert elsewhere.calls == []


async def test_no_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    agentctl = RecordingAgentctl()
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, fake_agentctl.refusing_url())
    async with running(agentctl) as url:
        await client_of(url).status()
    assert agentctl.calls


async def test_endless_response_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executors_app.agentctl_client.client.MAX_ANSWER", 1_000_000)
    async with fake_agentctl.flooding_server(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65536) as url:
        with pytest.raises(AgentctlForeign) as caught:
            await client_of(url).read_file("x")
    assert caught.value.details["reason"] == "too_large"


async def _first_batch(client: AgentctlClient) -> list[dict[str, Any]]:
    async with client.events(3, "e") as stream:
        async for batch in stream:
            return batch
    return []


async def test_each_frame_of_the_event_stream_is_a_batch_of_lines() -> None:
    agentctl = RecordingAgentctl()
    agentctl.frames = [
        '{"seq":4,"epoch":"e","ts":1,"kind":"log","text":"a\\nb"}\n{"seq":5,"epoch":"e","ts":1.5,"kind":"log"}\n',
        '{"seq":6,"epoch":"e","ts":1,"kind":"log"}',
        '{"type":"truncated","first_seq":9}',
    ]
    batches = []
    async with running(agentctl) as url, client_of(url).events(3, "e") as stream:
        async for batch in stream:
            batches.append(batch)
            if len(batches) == 3:
                await stream.ack(6)
                assert await asyncio.wait_for(agentctl.acks.get(), PATIENCE) == {"ack": 6}
    assert [[line.get("seq") for line in batch] for batch in batches] == [[4, 5], [6], [None]]
    assert batches[0][0]["text"] == "a\nb"
    assert batches[2] == [{"type": "truncated", "first_seq": 9}]
    assert agentctl.calls == [("WS", "/events?after=3&epoch=e&generation=7", None)]


async def test_frame_beyond_the_limit_ends_only_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executors_app.agentctl_client.client.SOCKET_MESSAGE_LIMIT", 100_000)
    agentctl = RecordingAgentctl()
    agentctl.frames = ['{"seq":4,"epoch":"e","ts":1,"kind":"log","text":"' + "x" * 200_000 + '"}']
    async with running(agentctl) as url:
        with pytest.raises(AgentctlUnreachable):
            await _first_batch(client_of(url))


@pytest.mark.parametrize(
    ("close_code", "kind"),
    [(CLOSE_STALE_GENERATION, StaleGeneration), (1006, AgentctlUnreachable), (1011, AgentctlUnreachable)],
)
async def test_end_of_an_event_stream_has_a_reason(close_code: int, kind: type[ExecutorError]) -> None:
    agentctl = RecordingAgentctl()
    agentctl.close_code = close_code
    async with running(agentctl) as url:
        with pytest.raises(kind) as caught:
            await _first_batch(client_of(url))
    assert type(caught.value) is kind


async def test_clean_exit_of_agentctl_ends_the_iteration() -> None:
    agentctl = RecordingAgentctl()
    agentctl.close_code = 1001
    async with running(agentctl) as url:
        assert await _first_batch(client_of(url)) == []


GOOD_LINE = '{"seq":4,"epoch":"e","ts":1,"kind":"log"}'

UNREADABLE_LINES = {
    "invalid JSON": "hello",
    "a list": "[1]",
    "a number": "3",
    "null": "null",
    "torn": '{"seq":4,"epoch":"e","ts":1,"ki',
    "no header": '{"a":1}',
    "seq is text": '{"seq":"4","epoch":"e","ts":1,"kind":"log"}',
    "seq is true": '{"seq":true,"epoch":"e","ts":1,"kind":"log"}',
    "seq is 0": '{"seq":0,"epoch":"e","ts":1,"kind":"log"}',
    "seq is huge": '{"seq":9223372036854775808,"epoch":"e","ts":1,"kind":"log"}',
    "epoch is null": '{"seq":4,"epoch":null,"ts":1,"kind":"log"}',
    "ts is far in the future": '{"seq":4,"epoch":"e","ts":1e300,"kind":"log"}',
    "kind is a list": '{"seq":4,"epoch":"e","ts":1,"kind":["log"]}',
    "half a surrogate pair": '{"seq":4,"epoch":"e","ts":1,"kind":"log","text":"\\ud800"}',
    "deep": '{"seq":4,"epoch":"e","ts":1,"kind":"log","data":' + "[" * 400 + "]" * 400 + "}",
    "deeper": '{"seq":4,"epoch":"e","ts":1,"kind":"log","data":' + "[" * 100_000 + "]" * 100_000 + "}",
}


@pytest.mark.parametrize("line", UNREADABLE_LINES.values(), ids=list(UNREADABLE_LINES))
async def test_unreadable_line_does_not_affect_its_neighbours(line: str) -> None:
    agentctl = RecordingAgentctl()
    agentctl.frames = [f"{GOOD_LINE}\n{line}\n{GOOD_LINE}"]
    async with running(agentctl) as url:
        batch = await _first_batch(client_of(url))
    assert [one["kind"] for one in batch] == ["log", "unreadable", "log"]
    assert line.startswith(batch[1]["text"])
    assert len(batch[1]["text"]) <= 200


async def test_characters_that_no_database_stores_are_removed() -> None:
    agentctl = RecordingAgentctl()
    agentctl.frames = [GOOD_LINE[:-1] + ',"text":"a\\u0000b \\\\u0000"}']
    async with running(agentctl) as url:
        (line,) = await _first_batch(client_of(url))
    assert line["text"] == "a\ufffdb \\u0000"


@pytest.mark.parametrize(
    ("status", "kind"), [(401, AgentctlForeign), (409, StaleGeneration), (400, AgentctlRefused), (404, AgentctlRefused)]
)
async def test_refused_event_stream_has_a_reason(status: int, kind: type[ExecutorError]) -> None:
    agentctl = RecordingAgentctl()
    agentctl.status = status
    async with running(agentctl) as url:
        with pytest.raises(kind) as caught:
            await _first_batch(client_of(url))
    assert type(caught.value) is kind


async def test_event_stream_without_a_server_is_unreachable() -> None:
    with pytest.raises(AgentctlUnreachable):
        await _first_batch(client_of(fake_agentctl.refusing_url()))
