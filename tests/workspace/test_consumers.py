"""A shell through the web with a real agentctl: rights are checked at the start and while it is open."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User

from executors_app.agentctl.workspace.shells import MAX_UNREAD_BYTES
from executors_app.models import ExecutorRunning
from sessions_app.kernel.database_threads import run_in_database
from sessions_app.workspace import consumers as shell_consumer
from tests.stream.live.sockets import Headers, Socket, connected, of_page, of_program
from tests.waiting import PATIENCE
from tests.workspace.served import Served

READY = "echo ready-$((1+1))\n"


class Screen:
    """A client of one socket: bytes and texts that arrived, and finally the close code."""

    def __init__(self, socket: Socket):
        self.socket = socket
        self.bytes = bytearray()
        self.messages: list[dict[str, Any]] = []
        self.code: int | None = None

    async def type(self, text: str) -> None:
        await self.socket.wire.send_input({"type": "websocket.receive", "bytes": text.encode()})

    async def next(self) -> bool:
        message = await self.socket.wire.receive_output(PATIENCE)
        if message["type"] == "websocket.close":
            self.code = message["code"]
            return False
        if message.get("bytes") is not None:
            self.bytes += message["bytes"]
        else:
            self.messages.append(json.loads(message["text"]))
        return True

    async def shows(self, wanted: str) -> None:
        while wanted.encode() not in self.bytes[-65536:]:
            assert await self.next(), (self.code, self.messages, bytes(self.bytes[-500:]))

    async def closes(self) -> int | None:
        while await self.next():
            pass
        return self.code


@asynccontextmanager
async def shell(live: Served, headers: Headers, query: str = "cols=90&rows=30") -> AsyncIterator[Screen]:
    async with connected(f"/ws/sessions/{live.session.id}/shell/?{query}", headers) as socket:
        yield Screen(socket)


@pytest.fixture
def operator(live: Served) -> Headers:
    """Return the browser session of a member who may operate."""
    live.trust()
    return of_page(live.world.member)


async def test_bytes_pass_both_ways_and_the_window_is_resized(live: Served, operator: Headers) -> None:
    async with shell(live, operator) as screen:
        await screen.type("pwd; stty size; " + READY)
        await screen.shows("ready-2")
        assert screen.messages == [{"shell": "main", "offset": 0, "running": True, "new": True, "replay": 0}]
        assert str(live.workspace).encode() in screen.bytes
        assert b"30 90" in screen.bytes
        await screen.socket.tell({"resize": [100, 40]})
        await screen.type("stty size\n")
        await screen.shows("40 100")


async def test_shell_survives_a_reload_with_its_scrollback(live: Served, operator: Headers) -> None:
    async with shell(live, operator) as screen:
        await screen.type("here=me; " + READY)
        await screen.shows("ready-2")
    async with shell(live, operator) as screen:
        await screen.shows("ready-2")
        await screen.type("echo still-$here\n")
        await screen.shows("still-me")


async def test_exit_of_the_shell_is_reported(live: Served, operator: Headers) -> None:
    async with shell(live, operator) as screen:
        await screen.type("exit 3\n")
        assert await screen.closes() == 1000
        assert screen.messages[-1] == {"exit": 3}


async def test_second_reader_takes_over_the_same_shell_only(live: Served, operator: Headers) -> None:
    async with shell(live, operator) as first, shell(live, operator, "shell=other") as other:
        await other.type(READY)
        await first.type(READY)
        await first.shows("ready-2")
        async with connected(f"/ws/sessions/{live.session.id}/shell/", operator) as socket:
            assert await first.closes() == 4410
            await Screen(socket).shows("ready-2")
        await other.shows("ready-2")


async def test_shells_per_user_are_limited(live: Served, operator: Headers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_consumer, "MAX_SHELL_SOCKETS", 1)
    async with shell(live, operator) as first:
        await first.type(READY)
        await first.shows("ready-2")
        async with shell(live, operator, "shell=other") as second:
            assert await second.closes() == 4429
    async with shell(live, operator, "shell=other") as third:
        await third.type(READY)
        await third.shows("ready-2")


INVALID_TEXTS = ("", "[]", '{"resize": [0, 5]}', '{"resize": [1]}', '{"ack": -1}', '{"ack": true}')
INVALID_REQUESTS = (
    *("cols=0", "cols=x", "cols=99999", "rows=1001", "rows=-1"),
    *("shell=a/b", "shell=", "window=0", "window=16777217"),
)


async def test_invalid_text_message_is_reported(live: Served, operator: Headers) -> None:
    async with shell(live, operator) as screen:
        for number, text in enumerate(INVALID_TEXTS, start=1):
            await screen.socket.wire.send_input({"type": "websocket.receive", "text": text})
            await screen.type(f"echo ready-{number}-$((1+1))\n")
            await screen.shows(f"ready-{number}-2")
            assert [list(one) for one in screen.messages].count(["error"]) == number, text


async def test_invalid_shell_request_is_refused(live: Served, operator: Headers) -> None:
    for query in INVALID_REQUESTS:
        async with shell(live, operator, query) as screen:
            assert await screen.closes() == 4400, query


class TestShellRights:
    """Rights to a shell: where agents are not isolated, a shell controls the machine (rule 39)."""

    async def test_member_without_the_right_gets_no_shell(self, live: Served) -> None:
        async with shell(live, await run_in_database(of_page, live.world.member)) as screen:
            assert await screen.closes() == 4403

    async def test_staff_of_the_team_get_a_shell_by_browser_or_token(self, live: Served) -> None:
        for make in (of_page, of_program):
            async with shell(live, await run_in_database(make, live.world.staff)) as screen:
                await screen.type(READY)
                await screen.shows("ready-2")

    async def test_other_teams_and_unknown_users_get_no_shell(self, live: Served) -> None:
        async with shell(live, await run_in_database(of_page, live.world.stranger)) as screen:
            assert await screen.closes() == 4404
        async with shell(live, {"Host": "localhost", "Origin": "http://localhost"}) as screen:
            assert await screen.closes() == 4401
        strange = await run_in_database(of_page, live.world.staff, "http://elsewhere.example")
        async with shell(live, strange) as screen:
            assert await screen.closes() == 4401

    @pytest.mark.parametrize("what", ["membership", "right", "account"])
    async def test_losing_the_right_closes_the_shell_within_five_seconds(
        self, live: Served, operator: Headers, what: str
    ) -> None:
        def take_away() -> None:
            if what == "membership":
                live.world.member.groups.clear()
            elif what == "right":
                live.world.team.permissions.remove(Permission.objects.get(codename="operate_unisolated"))
            else:
                User.objects.filter(pk=live.world.member.pk).update(is_active=False)

        async with shell(live, operator) as screen:
            await screen.type(READY)
            await screen.shows("ready-2")
            await run_in_database(take_away)
            code = await screen.socket.close_code(timeout=PATIENCE)
            assert code == {"membership": 4404, "right": 4403, "account": 4401}[what]


async def test_unknown_session_has_no_shell(live: Served, operator: Headers) -> None:
    for key in (uuid.uuid4(), "x"):
        async with connected(f"/ws/sessions/{key}/shell/", operator) as socket:
            assert await socket.close_code() == 4404


@pytest.mark.parametrize("values", [{"status": "stopped"}, {"agentctl_url": "unix:/nowhere/agentctl"}])
async def test_shell_is_unreachable_without_agentctl(live: Served, operator: Headers, values: dict[str, str]) -> None:
    await run_in_database(ExecutorRunning.objects.update, **values)
    async with shell(live, operator) as screen:
        assert await screen.closes() == 4503


async def test_lost_connection_to_agentctl_closes_the_shell(live: Served, operator: Headers) -> None:
    async with shell(live, operator) as screen:
        await screen.type(READY)
        await screen.shows("ready-2")
        agentctl = live.place.ready()["pid"]
        await screen.type(f"kill -{signal.SIGKILL:d} {agentctl}\n")
        assert await screen.closes() == 4503


async def test_reader_that_does_not_acknowledge_is_closed(
    live: Served, operator: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell_consumer, "FLOW_CONTROL_WINDOW", 200_000)
    monkeypatch.setattr(shell_consumer, "ACK_TIMEOUT", 0.2)
    async with shell(live, operator) as screen:
        await screen.type("stty -echo; seq 200000; " + READY)
        assert await screen.closes() == 4408
        assert len(screen.bytes) < 200_000 + MAX_UNREAD_BYTES
    monkeypatch.setattr(shell_consumer, "ACK_TIMEOUT", PATIENCE)
    async with shell(live, operator) as screen:
        while b"ready-2" not in screen.bytes[-200:]:
            assert await screen.next(), screen.code
            await screen.socket.tell({"ack": len(screen.bytes)})


async def test_shell_waits_for_a_reader_with_a_full_window(live: Served, operator: Headers) -> None:
    window, size = 100_000, 4_000_000
    async with shell(live, operator, f"window={window}") as screen:
        await screen.type(f"stty -echo -opost; head -c {size} /dev/zero | tr '\\0' x; {READY}")
        while len(screen.bytes) < window:
            assert await screen.next(), screen.code
        assert await screen.socket.wire.receive_nothing(timeout=0.5)
        assert len(screen.bytes) < window + MAX_UNREAD_BYTES
        while b"ready-2" not in screen.bytes[-200:]:
            await screen.socket.tell({"ack": len(screen.bytes)})
            assert await screen.next(), screen.code
        assert screen.bytes.count(b"x") >= size
