"""Access to ``/mcp``, and requests that are refused before any tool runs."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from django.db import OperationalError

from sessions_app.accounts import credentials
from sessions_app.accounts.models import ApiToken, AttemptCount
from sessions_app.api.base_views import MAX_BODY
from sessions_app.kernel.database_threads import run_in_database
from tests.api.world import World
from tests.mcp_server.clients import URL, http_client, new_token

LIST: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
ACCEPT = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}


async def ask(headers: dict[str, str], method: str = "POST", url: str = URL, **more: Any) -> httpx2.Response:
    body = {"json": LIST} if method == "POST" and not more else more
    async with http_client({**ACCEPT, **headers}) as http:
        return await http.request(method, url, **body)


@pytest.fixture
async def bearer(served_world: World) -> dict[str, str]:
    return {"Authorization": f"Bearer {await run_in_database(new_token, served_world.member)}"}


@pytest.mark.parametrize("url", ["http://localhost/mcp", "http://localhost/mcp/"])
async def test_token_is_admitted(bearer: dict[str, str], url: str) -> None:
    answer = await ask(bearer, url=url)
    assert answer.status_code == 200
    assert '"name":"list_sessions"' in answer.text


async def test_nothing_is_admitted_without_a_valid_token(served_world: World, bearer: dict[str, str]) -> None:
    key = bearer["Authorization"].removeprefix("Bearer ")
    for given in ("", "Bearer", f"Basic {key}", f"Token {key}", "Bearer wrong", f"Bearer {key} more"):
        answer = await ask({"Authorization": given})
        assert (answer.status_code, answer.json()["code"]) == (401, "not_authenticated"), given
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    await run_in_database(lambda: ApiToken.objects.update(expires_at="2020-01-01T00:00Z"))
    assert (await ask(bearer)).status_code == 401


async def test_login_cookie_is_no_credential(served_world: World) -> None:
    from tests.stream.live.sockets import of_page  # noqa: PLC0415

    answer = await ask(await run_in_database(of_page, served_world.member))
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost"}, 200),
    ],
)
async def test_only_own_host_and_origin_are_served(
    bearer: dict[str, str], headers: dict[str, str], status: int
) -> None:
    assert (await ask({**bearer, **headers})).status_code == status


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_only_post_is_served(bearer: dict[str, str], method: str) -> None:
    answer = await ask(bearer, method)
    assert (answer.status_code, answer.json()["code"], answer.headers["Allow"]) == (405, "method_not_allowed", "POST")


async def test_oversized_body_is_refused(bearer: dict[str, str]) -> None:
    answer = await ask({**bearer, "Content-Length": str(MAX_BODY + 1)}, content=b"{}")
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 5_000, b'{"jsonrpc": "2.0"}', b"\xff", b'"text"'])
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_malformed_body_is_a_client_error(bearer: dict[str, str], body: bytes, version: str) -> None:
    headers = {**bearer, "Content-Type": "application/json", "MCP-Protocol-Version": version}
    assert 400 <= (await ask(headers, content=body)).status_code < 500


async def test_wrong_tokens_are_throttled_and_valid_ones_are_not(bearer: dict[str, str]) -> None:
    await run_in_database(AttemptCount.objects.all().delete)
    answers = [await ask({"Authorization": "Bearer wrong"}) for _ in range(31)]
    assert [answer.status_code for answer in answers] == [401] * 30 + [429]
    assert (answers[-1].json()["code"], int(answers[-1].headers["Retry-After"]) > 0) == ("throttled", True)
    assert (await ask(bearer)).status_code == 200


async def test_database_outage_is_reported_as_such(bearer: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(key: str) -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr(credentials, "authenticate_token", unavailable)
    answer = await ask(bearer)
    assert (answer.status_code, answer.json()["code"]) == (503, "database_busy")


async def test_everything_else_goes_to_django(served_world: World) -> None:
    for url in ("http://localhost/mcp/more", "http://localhost/api/v1/tasks/"):
        assert (await ask({}, "GET", url)).status_code in (302, 401, 404)
