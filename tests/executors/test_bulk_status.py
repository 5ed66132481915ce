"""Status requests of a sweep to many agentctls: trouble with one does not affect the others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from executors_app.machine.bulk_status import StatusTarget, poll_statuses
from executors_app.wire.errors import AgentctlForeign, AgentctlRefused, AgentctlUnreachable, ExecutorError
from tests.support import fake_agentctl
from tests.support.fake_agentctl import FakeAgentctl, FakeFleet, fake_status, plan_fleet
from tests.waiting import PATIENCE, eventually_async, pass_time

EXECUTION = "execution-1"
TOKEN = "the-token"


def targets_of(fleet: list[FakeAgentctl]) -> list[StatusTarget]:
    return [StatusTarget(one.execution_id, one.url, one.token) for one in fleet]


async def ask(url: str, timeout: float = PATIENCE, token: str = TOKEN) -> dict[str, Any] | ExecutorError:
    return (await poll_statuses([StatusTarget(EXECUTION, url, token)], timeout, 1))[EXECUTION]


async def test_every_member_of_a_fleet_answers_as_itself() -> None:
    fleet = plan_fleet(200, "127.66.0.1", 47011)
    async with FakeFleet(fleet):
        seen = await poll_statuses(targets_of(fleet), timeout=PATIENCE, concurrency=50)
    assert seen == {one.execution_id: fake_status(one) for one in fleet}


async def test_silent_and_missing_members_do_not_delay_others() -> None:
    fleet = plan_fleet(60, "127.66.1.1", 47012, hanging=10, refusing=10)
    failed = list[str]()
    async with FakeFleet(fleet) as served:
        polling = asyncio.create_task(
            poll_statuses(targets_of(fleet), PATIENCE, 12, on_error=lambda execution, error: failed.append(execution))
        )
        await eventually_async(
            lambda: len(served.hanging) == len(failed) == 10,
            describe="only the hanging ones are waited for, all at once",
        )
        pass_time(PATIENCE)
        seen = await polling
    reasons = [getattr(seen[one.execution_id], "details", {}).get("reason", "answered") for one in fleet]
    assert reasons == ["answered"] * 40 + ["timeout"] * 10 + ["refused"] * 10


async def test_concurrent_requests_are_limited() -> None:
    open_now = most = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await reader.readuntil(b"\r\n\r\n")
        open_now -= 1
        writer.write(fake_agentctl.http_response(200, b"{}"))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        targets = [StatusTarget(str(number), f"http://127.0.0.1:{port}", "t") for number in range(40)]
        assert len(await poll_statuses(targets, 5, 4)) == 40
    assert 1 <= most <= 4


GOOD = json.dumps({"execution_id": EXECUTION}).encode()

ANSWERS: list[tuple[str, bytes, type[ExecutorError], str | None]] = [
    ("wrong token", fake_agentctl.http_response(401, b"{}"), AgentctlForeign, "not_ours"),
    (
        "another execution",
        fake_agentctl.http_response(200, b'{"execution_id": "x"}'),
        AgentctlForeign,
        "other_execution",
    ),
    ("redirect", fake_agentctl.http_response(302, b"", "Location: http://127.0.0.1:1/"), AgentctlForeign, "no_json"),
    ("no HTTP", b"220 mail.example.org ESMTP\r\n\r\n", AgentctlForeign, "no_json"),
    ("half an answer", fake_agentctl.http_response(200, GOOD)[:-3], AgentctlForeign, "no_json"),
    ("half a head", b"HTTP/1.1 200 OK\r\nContent", AgentctlForeign, "no_json"),
    ("deep nesting", fake_agentctl.http_response(200, b"[" * 100_000), AgentctlForeign, "no_json"),
    ("broken proxy", fake_agentctl.http_response(503, b"sorry"), AgentctlUnreachable, "gateway"),
    ("nothing", b"", AgentctlUnreachable, "closed"),
    ("a refusal", fake_agentctl.http_response(500, b'{"code": "internal_error"}'), AgentctlRefused, None),
]


@pytest.mark.parametrize(("answer", "kind", "reason"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
async def test_invalid_response_is_described(answer: bytes, kind: type[ExecutorError], reason: str | None) -> None:
    async with fake_agentctl.answering_server(answer) as url:
        seen = await ask(url)
    assert type(seen) is kind
    assert seen.details.get("reason") == reason


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\ncontent-LENGTH:  %d\r\n\r\n"])
async def test_response_may_have_a_length_or_end_with_the_connection(head: bytes) -> None:
    async with fake_agentctl.answering_server((head.replace(b"%d", str(len(GOOD)).encode())) + GOOD) as url:
        assert await ask(url) == {"execution_id": EXECUTION}


@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("", "t"),
        ("http://", "t"),
        ("ftp://127.0.0.1:1", "t"),
        ("http://127.0.0.1:x", "t"),
        ("http://127.0.0.1:1", "t\r\nX: y"),
        ("http://127.0.0.1:1", "é"),
    ],
)
async def test_invalid_address_gets_no_request(url: str, token: str) -> None:
    seen = await ask(url, token=token)
    assert isinstance(seen, AgentctlUnreachable)
    assert seen.details["reason"] == "bad_url"


async def test_endless_response_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executors_app.machine.bulk_status.MAX_ANSWER", 1_000_000)
    async with fake_agentctl.flooding_server(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65536) as url:
        seen = await ask(url)
    assert isinstance(seen, AgentctlForeign)
    assert seen.details["reason"] == "too_large"


def test_fleet_beyond_the_loopback_range_is_refused() -> None:
    with pytest.raises(ValueError, match="loopback"):
        plan_fleet(10, "127.255.255.250", 47013)


def test_target_never_shows_its_token() -> None:
    assert "secret" not in repr(StatusTarget("e", "http://127.0.0.1:1", "secret"))
