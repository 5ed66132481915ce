"""Unauthenticated requests cost the web process a bounded amount of bytes, time and connections."""

from __future__ import annotations

import json
import re
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from kandev.web_server import BYTES_PER_EXTENSION, MAX_BODY_SIZE, REQUEST_TIMEOUT, LimitedChannel, LimitedRequest
from sessions_app.api.base_views import MAX_BODY
from tests.drills.deployment import Deployment

HEAD = b"POST /api/v1/tasks/ HTTP/1.1\r\nHost: localhost\r\n"
FEW = 256
"""The limit of open files of the server, as set by a shell or a service manager."""
TRICKLES = {
    "a first line": b"G" * 4000,
    "a head": HEAD + b"X-A: b\r\n" * 1000,
    "a body": HEAD + b"Content-Length: 100000\r\n\r\n" + b" " * 4000,
    "a body in chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 1000,
}


class RecordedRequest(LimitedRequest):
    """A request that gets no answer."""

    complete: list[int]

    def process(self) -> None:
        self.complete.append(self._length)


def _untyped(made_by: Any) -> Any:
    """Return Twisted's class untyped, because Twisted has no types here."""
    return made_by


class Line:
    """One connection with its own clock."""

    def __init__(self) -> None:
        self.clock, self.complete = Clock(), list[int]()
        self.transport: Any = _untyped(StringTransport)()
        self.channel: Any = _untyped(LimitedChannel)()
        self.channel.callLater = self.clock.callLater
        self.channel.requestFactory = type("Kept", (RecordedRequest,), {"complete": self.complete})
        gone = SimpleNamespace(protocol_connected=lambda one: None, protocol_disconnected=lambda one: None)
        self.channel.factory = SimpleNamespace(server=gone)
        self.channel.makeConnection(self.transport)

    def says(self, data: bytes) -> None:
        if not self.is_over:
            self.channel.dataReceived(data)

    @property
    def is_over(self) -> bool:
        return bool(self.transport.disconnecting)

    def rests(self, seconds: float) -> None:
        self.clock.advance(seconds)


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.channel.connectionLost(_untyped(Failure)(ConnectionDone()))


@pytest.mark.parametrize("data", TRICKLES.values(), ids=TRICKLES)
def test_trickling_request_times_out(data: bytes, line: Line) -> None:
    seconds = 0
    for byte in data:
        line.says(bytes([byte]))
        line.rests(1)
        seconds += 1
        if line.is_over:
            break
    assert line.is_over
    assert seconds <= REQUEST_TIMEOUT + 1
    assert not line.complete


def test_steadily_arriving_body_extends_the_timeout(line: Line) -> None:
    size = 8 * BYTES_PER_EXTENSION
    line.says(HEAD + b"Content-Length: %d\r\n\r\n" % size)
    for _ in range(16):
        line.rests(REQUEST_TIMEOUT / 2 - 1)
        line.says(b" " * (BYTES_PER_EXTENSION // 2))
    assert line.complete == [size]
    assert not line.is_over


def test_idle_connection_gets_the_full_timeout_for_its_next_request(line: Line) -> None:
    line.rests(REQUEST_TIMEOUT - 1)
    line.says(HEAD)
    line.rests(REQUEST_TIMEOUT - 1)
    line.says(b"\r\n")
    assert line.complete == [0]


def test_silent_connection_times_out(line: Line) -> None:
    line.rests(REQUEST_TIMEOUT)
    assert line.is_over


@pytest.mark.parametrize("has_length", [True, False], ids=["told", "in chunks"])
def test_oversized_body_is_rejected_and_not_stored(has_length: bool, line: Line) -> None:
    piece = b" " * 65_536
    line.says(HEAD + (b"Content-Length: %d\r\n\r\n" % 10**12 if has_length else b"Transfer-Encoding: chunked\r\n\r\n"))
    request: Any = line.channel.requests[0]
    for _ in range(MAX_BODY_SIZE // len(piece) + 2):
        line.says(piece if has_length else b"%x\r\n%s\r\n" % (len(piece), piece))
    assert line.is_over
    assert line.transport.value().startswith(b"HTTP/1.1 413 ")
    assert request.content.tell() <= MAX_BODY_SIZE
    assert not line.complete


def test_root_path_header_is_ignored(line: Line) -> None:
    line.says(HEAD + b"Daphne-Root-Path: //evil.example\r\n\r\n")
    request: Any = line.channel.requests[0]
    assert line.complete == [0]
    assert not request.requestHeaders.hasHeader("daphne-root-path")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment(tmp_path_factory.mktemp("limits"))
    made.prepare()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, hard))
    try:
        made.serve()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    yield made
    made.close()


def answer_to(deployment: Deployment, *pieces: bytes) -> bytes:
    """Return all that the server sends until it closes the connection."""
    host, port = deployment.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as line:
        for piece in pieces:
            line.sendall(piece)
        return b"".join(iter(lambda: line.recv(65_536), b""))


@pytest.mark.any_database
def test_running_server_enforces_these_limits(deployment: Deployment) -> None:
    response = answer_to(deployment, HEAD + b"Content-Length: 1000000000000\r\n\r\n")
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    assert json.loads(body) == {
        "code": "too_large",
        "message": "The request body is too large.",
        "details": {"limit": MAX_BODY},
    }
    hosts = b"Daphne-Root-Path: //evil.example\r\nConnection: close\r\n\r\n"
    moved = answer_to(deployment, HEAD.replace(b"POST /api/v1/tasks/", b"GET /") + hosts)
    assert re.search(rb"(?i)\r\nlocation: /login/", moved)


@pytest.mark.any_database
def test_oversized_request_head_is_rejected(deployment: Deployment) -> None:
    large = HEAD + b"X-Large: " + b"x" * 20_000 + b"\r\n"
    assert answer_to(deployment, large) == b"", "a request line of that length gets no answer"
    many = HEAD + b"".join(b"X-%d: y\r\n" % number for number in range(600))
    assert answer_to(deployment, many).startswith(b"HTTP/1.1 400 ")
    assert deployment.is_ready()


@pytest.mark.any_database
def test_hundreds_of_idle_connections_lock_nobody_out(deployment: Deployment) -> None:
    host, port = deployment.url.removeprefix("http://").split(":")
    with ExitStack() as lines:
        for _ in range(3 * FEW):
            line = lines.enter_context(socket.create_connection((host, int(port)), timeout=60))
            line.sendall(HEAD)
        assert deployment.is_ready()
