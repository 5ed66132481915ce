"""Access to sockets: pages of our own origin with a login, and programs with a token."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User

from sessions_app.kernel.database_threads import run_in_database
from sessions_app.kernel.services.errors import NotFound
from sessions_app.stream.consumers import TaskConsumer
from sessions_app.stream.live import hub as hubs
from sessions_app.stream.live.authentication import is_own_origin
from tests.api.world import World
from tests.stream.live.sockets import ORIGIN, Headers, Socket, connected, of_page, of_program, path_of
from tests.waiting import PATIENCE, eventually_async

OPEN = "hello"
CLOSED = 4401


async def outcome(path: str, headers: Headers) -> Any:
    """Return the close code, or the type of the first frame."""
    async with connected(path, headers) as socket:
        message = await socket.wire.receive_output(PATIENCE)
        return message["code"] if message["type"] == "websocket.close" else OPEN


def page(**more: str | None) -> Callable[[User], Headers]:
    """Return a function for a page's headers, some of them changed or removed."""
    return lambda user: {name: value for name, value in {**of_page(user), **more}.items() if value is not None}


def program(**more: str | None) -> Callable[[User], Headers]:
    return lambda user: {name: value for name, value in {**of_program(user), **more}.items() if value is not None}


CALLERS = [
    ("a page of ours", page(), OPEN),
    ("the default port spelled out", page(Host="localhost:80"), OPEN),
    ("a page and the password of a proxy", page(Authorization="Basic YTpi"), OPEN),
    ("a page on another port", page(Origin="http://localhost:8001"), CLOSED),
    ("a page by another scheme", page(Origin="https://localhost"), CLOSED),
    ("a page on another host", page(Origin="http://evil.example"), CLOSED),
    ("a page on a host that ends as ours", page(Origin="http://evil-localhost"), CLOSED),
    ("a page on a host that begins as ours", page(Origin="http://localhost.evil.example"), CLOSED),
    ("a host that was made to point here", page(Host="evil.example", Origin="http://evil.example"), CLOSED),
    ("a page from nowhere", page(Origin="null"), CLOSED),
    ("an empty origin", page(Origin=""), CLOSED),
    ("an origin with a name in it", page(Origin="http://localhost@evil.example"), CLOSED),
    ("a bad port", page(Origin="http://localhost:port"), CLOSED),
    ("a cookie without an origin", page(Origin=None), CLOSED),
    ("a page without a host", page(Host=None), CLOSED),
    ("a page without a login", page(Cookie=None), CLOSED),
    ("a page with a stale login", page(Cookie="kandev_session=0123456789abcdef"), CLOSED),
    ("a program", program(), OPEN),
    ("a program that calls us by another name", program(Host="kandev.example"), OPEN),
    ("a program from a page", program(Origin=ORIGIN), CLOSED),
    ("a program from another's page", program(Origin="http://evil.example"), CLOSED),
    ("an unknown token", program(Authorization="Token 0123456789abcdef"), CLOSED),
    ("another scheme", program(Authorization="Bearer 0123456789abcdef"), CLOSED),
    ("half a header", program(Authorization="Token"), CLOSED),
    ("nobody", program(Authorization=None), CLOSED),
]


async def test_only_own_pages_and_token_holders_can_connect(world: World) -> None:
    path, found = path_of(world.session), {}
    for name, headers, _ in CALLERS:
        found[name] = await outcome(path, await run_in_database(headers, world.member))
    assert found == {name: expected for name, _, expected in CALLERS}


@pytest.mark.parametrize("caller", [of_page, of_program])
async def test_inactive_user_cannot_connect(world: World, caller: Any) -> None:
    headers = await run_in_database(caller, world.member)
    await run_in_database(lambda: User.objects.filter(id=world.member.id).update(is_active=False))
    assert await outcome(path_of(world.session), headers) == CLOSED


BEHIND_TLS = {
    "ALLOWED_HOSTS": ["kandev.example"],
    "CSRF_TRUSTED_ORIGINS": ["https://kandev.example:8443", "https://*.pages.example"],
}


@pytest.mark.parametrize(
    ("origin", "scheme", "own"),
    [
        ("https://kandev.example", "wss", True),
        ("https://KANDEV.example:443", "wss", True),
        ("http://kandev.example", "wss", False),
        ("https://kandev.example", "ws", False),
        ("https://kandev.example:8443", "ws", True),
        ("https://kandev.example:8444", "ws", False),
        ("https://a.pages.example", "ws", True),
        ("http://a.pages.example", "ws", False),
        ("https://evilpages.example", "ws", False),
    ],
)
def test_origin_check_respects_the_proxy_headers(settings: Any, origin: str, scheme: str, own: bool) -> None:
    for name, value in BEHIND_TLS.items():
        setattr(settings, name, value)
    headers = [(b"host", b"kandev.example"), (b"x-forwarded-proto", b"https")]
    assert is_own_origin({"scheme": scheme, "headers": headers}, [origin]) is own


def test_two_origin_headers_are_rejected() -> None:
    assert not is_own_origin({"headers": [(b"host", b"localhost")]}, [ORIGIN, ORIGIN])


def places(world: World) -> list[str]:
    there = (str(world.session.id), str(world.task.id))
    unknown = [f"/ws/{kind}/{key}/" for kind in ("sessions", "tasks") for key in (uuid.uuid4(), "1", there[0] + "x")]
    crossed = [f"/ws/sessions/{there[1]}/", f"/ws/tasks/{there[0]}/", f"/ws/sessions/{{{there[0]}}}/"]
    return [*unknown, *crossed, "/ws/", "/ws/elsewhere/", f"/ws/sessions/{there[0]}", f"/ws/sessions/{there[0]}/more/"]


async def test_unknown_paths_are_closed_as_not_found(world: World) -> None:
    headers = await run_in_database(of_page, world.member)
    found = {path: await outcome(path, headers) for path in places(world)}
    assert found == dict.fromkeys(found, 4404)


async def test_sessions_and_tasks_of_other_teams_are_not_found(world: World) -> None:
    headers = await run_in_database(of_page, world.stranger)
    for path in (path_of(world.session), f"/ws/tasks/{world.task.id}/"):
        assert await outcome(path, headers) == 4404


async def test_sockets_per_user_are_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "MAX_SUBSCRIPTIONS", 2)
    headers = await run_in_database(of_page, world.member)
    colleague = await run_in_database(of_page, world.staff)
    path = path_of(world.session)
    async with connected(path, headers) as first:
        assert (await first.frame())["type"] == "hello"
        async with connected(path, headers) as second:
            assert (await second.frame())["type"] == "hello"
            assert await outcome(path, headers) == 4429
            assert await outcome(path, colleague) == OPEN
        assert await outcome(path, headers) == OPEN


@pytest.fixture
def slow_greetings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Let the greeting of a task's socket last until the test ends; yield how many have begun."""
    begun, ends = Counter[str](), threading.Event()

    def build_greeting(consumer: TaskConsumer, *given: Any) -> Any:
        begun["greetings"] += 1
        ends.wait(60)
        raise NotFound

    monkeypatch.setattr(TaskConsumer, "build_greeting", build_greeting)
    yield begun
    ends.set()


async def test_slow_greetings_of_one_user_delay_no_other_user(world: World, slow_greetings: Counter[str]) -> None:
    headers, colleague = await run_in_database(of_page, world.member), await run_in_database(of_page, world.staff)
    async with AsyncExitStack() as sockets:
        for _ in range(8):
            await sockets.enter_async_context(unfinished(f"/ws/tasks/{world.task.id}/", headers))
        await eventually_async(lambda: slow_greetings["greetings"], describe="a greeting has begun")
        assert await outcome(path_of(world.session), colleague) == OPEN
        assert slow_greetings["greetings"] == 1


async def test_sockets_that_wait_for_their_greeting_count(
    world: World, slow_greetings: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "MAX_SUBSCRIPTIONS", 2)
    headers, path = await run_in_database(of_page, world.member), f"/ws/tasks/{world.task.id}/"
    async with unfinished(path, headers), unfinished(path, headers):
        await eventually_async(lambda: slow_greetings["greetings"], describe="a greeting has begun")
        assert await outcome(path, headers) == 4429


@asynccontextmanager
async def unfinished(path: str, headers: Headers) -> AsyncIterator[Socket]:
    """Open a socket and cancel it at the end, as it waits for a thread."""
    socket = Socket(path, headers)
    await socket.accepted()
    try:
        yield socket
    finally:
        socket.wire.stop(exceptions=False)
