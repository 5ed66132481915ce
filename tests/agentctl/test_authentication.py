"""Authentication of requests: token, Host and Origin; every error has one shape."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from executors_app import __version__
from executors_app.agentctl.http.server import AuthMiddleware, host_of
from executors_app.wire.protocol import GENERATION_HEADER
from tests.agentctl.running import TOKEN, Running, agentctl

ENDPOINTS = [
    ("GET", "/capabilities"),
    ("GET", "/status"),
    ("GET", "/agent/session"),
    ("POST", "/agent/start"),
    ("POST", "/agent/stop"),
    ("POST", "/prompt"),
    ("POST", "/cancel"),
    ("POST", "/settings"),
    ("POST", "/permissions/x"),
    ("POST", "/jobs"),
    ("GET", "/jobs/x"),
    ("POST", "/jobs/x/cancel"),
    ("POST", "/shutdown"),
    ("GET", "/events?generation=1"),
    ("GET", "/files"),
    ("GET", "/files/search?query=x"),
    ("GET", "/files/content?path=x"),
    ("GET", "/none/such"),
    ("DELETE", "/status"),
]
INTRUDERS: dict[str, tuple[dict[str, str], int, str]] = {
    "no token": ({"Authorization": ""}, 401, "not_authenticated"),
    "a wrong token": ({"Authorization": f"Bearer {TOKEN}x"}, 401, "not_authenticated"),
    "a prefix of the token": ({"Authorization": f"Bearer {TOKEN[:-1]}"}, 401, "not_authenticated"),
    "another scheme": ({"Authorization": f"Basic {TOKEN}"}, 401, "not_authenticated"),
    "a foreign host": ({"Host": "evil.example"}, 403, "forbidden_host"),
    "our host, another port": ({"Host": "127.0.0.1:1"}, 403, "forbidden_host"),
    "our host, no port": ({"Host": "localhost"}, 403, "forbidden_host"),
    "a browser": ({"Origin": "http://127.0.0.1"}, 403, "forbidden_origin"),
    "a browser's null": ({"Origin": "null"}, 403, "forbidden_origin"),
}


async def _call(running: Running, method: str, path: str, headers: dict[str, str], data: Any = None) -> Any:
    headers = {**running.headers, GENERATION_HEADER: "1", **headers}
    async with running.http.request(method, running.url + path, headers=headers, data=data) as response:
        return response.status, await response.json()


@pytest.mark.parametrize(("headers", "status", "code"), INTRUDERS.values(), ids=INTRUDERS)
async def test_every_endpoint_refuses_unauthorized_requests(
    running: Running, headers: dict[str, str], status: int, code: str
) -> None:
    before = running.sidecar.journal.last_seq

    for method, path in ENDPOINTS:
        answer = await _call(running, method, path, headers, data=b"{}" if method == "POST" else None)
        assert (answer[0], answer[1]["code"]) == (status, code), (method, path)
        assert answer[1].keys() == {"code", "message", "details"}

    assert running.sidecar.journal.last_seq == before
    assert not running.sidecar.ended.is_set()


async def test_health_needs_no_token_but_checks_host_and_origin(running: Running) -> None:
    status, health = await _call(running, "GET", "/health", {"Authorization": ""})
    known = {"version": 1, "release": __version__, "boot_id": running.sidecar.boot_id}
    assert (status, health) == (200, {"status": "ok", **known})
    assert (await _call(running, "GET", "/status", {}))[1]["release"] == __version__

    for headers in ({"Host": "evil.example"}, {"Origin": "null"}):
        assert (await _call(running, "GET", "/health", headers))[0] == 403


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LocalHost", "[::1]"])
async def test_every_local_host_name_is_accepted(running: Running, name: str) -> None:
    port = running.url.rpartition(":")[2]

    assert (await _call(running, "GET", "/status", {"Host": f"{name}:{port}"}))[0] == 200


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("172.17.0.2:8080", True),
        ("172.17.0.2", True),
        ("[fd00::2]:80", True),
        ("rebound.example:8080", False),
        ("", False),
    ],
)
def test_wildcard_listener_accepts_addresses_but_no_foreign_names(host: str, is_ours: bool) -> None:
    assert AuthMiddleware(TOKEN, "0.0.0.0", 8080, lambda: None).is_our_host(host) is is_ours  # noqa: S104


BAD_BODIES: dict[str, tuple[str, bytes]] = {
    "invalid JSON": ("/prompt", b"{"),
    "not an object": ("/prompt", b"[1]"),
    "a bare null": ("/prompt", b"null"),
    "deep nesting": ("/prompt", b"[" * 100_000),
    "not UTF-8": ("/prompt", b'{"message_id": "\xff"}'),
    "no id": ("/prompt", b'{"text": "x"}'),
    "an id with a newline": ("/prompt", b'{"message_id": "a\\nb", "text": "x"}'),
    "an id that is too long": ("/prompt", b'{"message_id": "' + b"a" * 201 + b'", "text": "x"}'),
    "an id that is a number": ("/prompt", b'{"message_id": 1, "text": "x"}'),
    "a text that is not text": ("/prompt", b'{"message_id": "m", "text": {}}'),
    "attachments that are not a list": ("/prompt", b'{"message_id": "m", "text": "", "attachments": [1]}'),
    "a turn without an id": ("/cancel", b"{}"),
    "a grace that is not a number": ("/agent/stop", b'{"grace": "long"}'),
    "an infinite grace": ("/agent/stop", b'{"grace": 1e9}'),
    "a flag that is not a boolean": ("/shutdown", b'{"stop_agent": 1}'),
}


@pytest.mark.parametrize(("path", "data"), BAD_BODIES.values(), ids=BAD_BODIES)
async def test_invalid_body_is_refused(running: Running, path: str, data: bytes) -> None:
    status, body = await _call(running, "POST", path, {}, data)

    assert (status, body["code"]) == (400, "validation_error")
    assert body.keys() == {"code", "message", "details"}


@pytest.mark.parametrize("chunked", [False, True])
async def test_oversized_body_is_refused(running: Running, chunked: bool) -> None:
    async def parts() -> Any:
        for _ in range(17):
            yield b" " * (1 << 20)

    data = parts() if chunked else io.BytesIO(b" " * (17 << 20))
    status, body = await _call(running, "POST", "/prompt", {}, data)

    assert (status, body["code"]) == (413, "too_large")


async def test_unknown_path_and_method_return_errors(running: Running) -> None:
    status, body = await _call(running, "GET", "/none/such", {})
    assert (status, body["code"]) == (404, "not_found")
    status, body = await _call(running, "DELETE", "/status", {})
    assert (status, body["code"]) == (405, "method_not_allowed")


COMMANDS = [path for method, path in ENDPOINTS if method == "POST"]


@pytest.mark.parametrize("generation", ["", "-1", "one", "1.0", "9" * 30, "١"])
async def test_command_without_a_valid_generation_is_refused(running: Running, generation: str) -> None:
    for path in COMMANDS:
        status, body = await _call(running, "POST", path, {GENERATION_HEADER: generation}, b"{}")
        assert (status, body["code"]) == (400, "validation_error")


async def test_command_of_an_older_generation_is_refused(running: Running) -> None:
    assert (await _call(running, "POST", "/cancel", {GENERATION_HEADER: "7"}, b'{"message_id": "m"}'))[0] == 200

    for path in COMMANDS:
        status, body = await _call(running, "POST", path, {GENERATION_HEADER: "6"}, b"{}")
        assert (status, body["code"], body["details"]["seen"]) == (409, "stale_generation", 7)
    assert (await running.get("/status"))["generation"] == 7


async def test_older_generation_is_refused_after_a_restart_of_agentctl(tmp_path: Path) -> None:
    async def cancel(running: Running, generation: str) -> int:
        answer = await _call(running, "POST", "/cancel", {GENERATION_HEADER: generation}, b'{"message_id": "m"}')
        return int(answer[0])

    async with agentctl(tmp_path) as first:
        assert await cancel(first, "7") == 200
    async with agentctl(tmp_path) as second:
        assert await cancel(second, "6") == 409
        assert await cancel(second, "7") == 200


async def test_unexpected_error_has_the_same_shape_and_no_internals(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(running.sidecar, "cancel", bug)  # stands for an unknown bug

    status, body = await _call(running, "POST", "/cancel", {}, b'{"message_id": "m"}')

    assert (status, body["code"]) == (500, "internal_error")
    assert "secret" not in str(body)


@pytest.mark.parametrize(
    ("name", "host", "header"),
    [
        ("box.example", "box.example", "box.example:8080"),
        ("box.example:9000", "box.example", "box.example:9000"),
        ("10.0.0.5", "10.0.0.5", "10.0.0.5:8080"),
        ("fd00::5", "fd00::5", "[fd00::5]:8080"),
        ("[fd00::5]", "fd00::5", "[fd00::5]:8080"),
        ("[fd00::5]:9000", "fd00::5", "[fd00::5]:9000"),
    ],
)
def test_further_name_of_a_host_may_be_any_address(name: str, host: str, header: str) -> None:
    assert host_of(name) == host
    assert AuthMiddleware(TOKEN, "127.0.0.1", 8080, lambda: None, [name]).is_our_host(header)
    assert not AuthMiddleware(TOKEN, "127.0.0.1", 8080, lambda: None, [name]).is_our_host("evil.example:8080")
