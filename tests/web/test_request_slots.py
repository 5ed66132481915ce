"""However many requests a caller sends at once, they share the web process with those of everybody else."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from kandev import request_slots
from kandev.request_slots import MAX_PROBES_PER_NETWORK, RequestSlots, RequestSlotsMiddleware, credential_of
from tests.drills.conftest import deployment, pytest_runtest_makereport  # noqa: F401
from tests.drills.deployment import Deployment
from tests.hostile_load.attackers import Request, send
from tests.waiting import PATIENCE

CROWD = 220
SCOPE: dict[str, Any] = {"type": "http", "path": "/", "headers": [], "client": ("192.0.2.1", 1)}


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def wait_in(slots: RequestSlots, caller: str, order: list[str]) -> None:
    assert await slots.acquire(caller.encode())
    order.append(caller)


async def test_callers_get_slots_in_turn() -> None:
    slots, order = RequestSlots(most=1, per_caller=9), list[str]()
    waiting = [asyncio.create_task(wait_in(slots, caller, order)) for caller in "aaaabc"]
    await settle()
    for _ in range(5):
        slots.release(order[-1].encode())
        await settle()
    await asyncio.gather(*waiting)
    assert "".join(order) == "aabcaa"


async def test_caller_holds_a_limited_number_of_slots() -> None:
    slots, order = RequestSlots(most=9, per_caller=2), list[str]()
    waiting = [asyncio.create_task(wait_in(slots, caller, order)) for caller in "aaab"]
    await settle()
    assert order == ["a", "a", "b"]
    slots.release(b"a")
    await asyncio.gather(*waiting)
    assert order == ["a", "a", "b", "a"]


async def test_caller_with_too_many_waiting_requests_is_refused() -> None:
    slots = RequestSlots(most=1, per_caller=1)
    assert await slots.acquire(b"a")
    waiting = asyncio.create_task(slots.acquire(b"a", most_waiting=1))
    await settle()
    assert not await slots.acquire(b"a", most_waiting=1)
    slots.release(b"a")
    assert await waiting
    slots.release(b"a")
    assert await slots.acquire(b"b")


@pytest.mark.parametrize("granted", [True, False])
async def test_request_that_is_cancelled_leaves_its_slot_to_others(granted: bool) -> None:
    slots = RequestSlots(most=1)
    assert await slots.acquire(b"a")
    waiting = asyncio.create_task(slots.acquire(b"b"))
    await settle()
    if granted:
        slots.release(b"a")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    if not granted:
        slots.release(b"a")
    assert await asyncio.wait_for(slots.acquire(b"c"), timeout=60)


async def serve(middleware: RequestSlotsMiddleware, **scope: Any) -> list[Any]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def keep(message: Any) -> None:
        sent.append(message)

    await middleware({**SCOPE, **scope}, receive, keep)
    return sent


async def test_stream_holds_no_slot_and_health_needs_none() -> None:
    ends = asyncio.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await ends.wait()

    slots = RequestSlots(most=1)
    middleware = RequestSlotsMiddleware(stream, "sessionid", slots)
    streams = [asyncio.create_task(serve(middleware)) for _ in range(3)]
    await settle()
    assert await asyncio.wait_for(slots.acquire(b"other"), timeout=60)
    health = asyncio.create_task(serve(middleware, path="/healthz"))
    ends.set()
    for answer in await asyncio.gather(*streams, health):
        assert answer[0]["status"] == 200


async def test_flood_of_probes_runs_few_at_once_and_delays_no_other_network() -> None:
    running, most, ends = Counter[str](), Counter[str](), asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        client = scope["client"][0]
        running[client] += 1
        most[client] = max(most[client], running[client])
        await (ends.wait() if client == "192.0.2.1" else settle())
        running[client] -= 1

    middleware = RequestSlotsMiddleware(application, "sessionid", RequestSlots(most=1))
    flood = [asyncio.create_task(serve(middleware, path="/healthz")) for _ in range(40)]
    await settle()
    await asyncio.wait_for(serve(middleware, path="/healthz", client=("192.0.2.2", 1)), timeout=60)
    await asyncio.wait_for(serve(middleware, client=("192.0.2.2", 1)), timeout=60)
    assert most["192.0.2.1"] == MAX_PROBES_PER_NETWORK
    ends.set()
    await asyncio.gather(*flood)


async def test_credentials_of_one_user_count_as_one_caller() -> None:
    held, ends = Counter[str](), asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        scope["kandev.remember_user"](7)
        held["now"] += 1
        held["most"] = max(held["most"], held["now"])
        await (settle() if scope["path"] == "/api/first" else ends.wait())
        held["now"] -= 1

    middleware = RequestSlotsMiddleware(application, "sessionid", RequestSlots(most=9, per_caller=2))
    callers = [[(b"authorization", b"Token %d" % number)] for number in range(4)]
    for headers in callers:
        await serve(middleware, path="/api/first", headers=headers)
    running = [asyncio.create_task(serve(middleware, path="/api/", headers=headers)) for headers in callers]
    await settle()
    ends.set()
    await asyncio.gather(*running)
    assert held["most"] == 2


@pytest.mark.parametrize(
    "connection",
    [{"type": "websocket", "path": "/ws/tasks/1/"}, {"path": "/mcp"}],
    ids=["socket", "MCP"],
)
async def test_connection_holds_its_slot_until_it_is_authenticated(connection: dict[str, Any]) -> None:
    begun, authenticated, ends = list[Any](), asyncio.Event(), asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope)
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
        await authenticated.wait()
        scope["kandev.remember_user"](7)
        await ends.wait()

    middleware = RequestSlotsMiddleware(application, "sessionid", RequestSlots(most=9, per_caller=2))
    tasks = [asyncio.create_task(serve(middleware, **connection)) for _ in range(6)]
    await settle()
    assert len(begun) == 2
    authenticated.set()
    await settle()
    await settle()
    assert len(begun) == 6
    ends.set()
    await asyncio.gather(*tasks)


async def test_socket_beyond_the_limit_is_refused_before_it_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_slots, "MAX_WAITING_UNKNOWN", 1)
    ends = asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await ends.wait()
        await send({"type": "websocket.close", "code": 4401})

    middleware = RequestSlotsMiddleware(application, "sessionid", RequestSlots(most=1))
    tasks = [asyncio.create_task(serve(middleware, type="websocket")) for _ in range(3)]
    await settle()
    assert [task.done() for task in tasks] == [False, False, True]
    ends.set()
    answers = await asyncio.gather(*tasks)
    assert answers[2] == [{"type": "websocket.close"}]
    assert answers[1] == [{"type": "websocket.close", "code": 4401}]


def invented(number: int) -> list[tuple[bytes, bytes]]:
    return [(b"cookie", b"sessionid=invented%d" % number)]


@pytest.mark.parametrize(
    ("crowd", "is_one_caller"),
    [
        ([{"client": (f"2001:db8::{number:x}", 1)} for number in range(1, 5)], True),
        ([{"client": (f"::ffff:192.0.2.1%{number}", 1)} for number in range(1, 5)], True),
        ([{"client": (f"not an address {number}", 1)} for number in range(1, 5)], True),
        ([{"headers": invented(number)} for number in range(1, 5)], True),
        ([{"client": (f"2001:db8:0:{number}::1", 1)} for number in range(1, 5)], False),
        ([{"client": (f"192.0.2.{number}", 1)} for number in range(1, 5)], False),
    ],
    ids=["one /64", "mapped", "no address", "invented logins", "networks", "addresses"],
)
async def test_requests_without_a_known_user_count_by_network(crowd: list[dict[str, Any]], is_one_caller: bool) -> None:
    running, ends = list[Any](), asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        running.append(scope)
        await ends.wait()

    middleware = RequestSlotsMiddleware(application, "sessionid", RequestSlots(most=9, per_caller=1))
    tasks = [asyncio.create_task(serve(middleware, **scope)) for scope in crowd]
    await settle()
    assert len(running) == (1 if is_one_caller else len(crowd))
    ends.set()
    await asyncio.gather(*tasks)


async def test_all_tabs_of_a_team_behind_one_address_are_answered_after_a_restart() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200})

    middleware = RequestSlotsMiddleware(application, "sessionid")
    users, tabs = range(300), range(6)
    answers = await asyncio.gather(*[serve(middleware, headers=invented(user)) for user in users for _ in tabs])
    assert {answer[0]["status"] for answer in answers} == {200}


async def test_credentials_of_one_network_take_turns() -> None:
    order, first = list[Any](), asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        order.append(scope["headers"])
        await first.wait()

    middleware = RequestSlotsMiddleware(application, "sessionid", RequestSlots(most=1))
    many, few = [LOGIN], [(b"cookie", b"sessionid=y")]
    tasks = [asyncio.create_task(serve(middleware, headers=headers)) for headers in (*[many] * 9, few, [])]
    await settle()
    first.set()
    await asyncio.gather(*tasks)
    assert order[:4] == [many, many, few, []]


async def test_login_without_a_credential_claims_no_other_request() -> None:
    running, ends = list[Any](), asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        scope["kandev.remember_user"](7)
        running.append(scope)
        if scope["path"] != "/login/":
            await ends.wait()

    middleware = RequestSlotsMiddleware(application, "sessionid", RequestSlots(most=9, per_caller=1))
    await serve(middleware, path="/login/")
    tasks = [asyncio.create_task(serve(middleware, client=(f"192.0.2.{number}", 1))) for number in range(2, 5)]
    await settle()
    assert len(running) == 4
    ends.set()
    await asyncio.gather(*tasks)


async def test_known_user_does_not_wait_for_strangers_of_the_same_network() -> None:
    ends = asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["headers"] == [LOGIN]:
            scope["kandev.remember_user"](7)
        else:
            await ends.wait()

    middleware = RequestSlotsMiddleware(application, "sessionid", RequestSlots(most=9, per_caller=1))
    await serve(middleware, headers=[LOGIN])
    strangers = [asyncio.create_task(serve(middleware, headers=invented(number))) for number in range(40)]
    await settle()
    await asyncio.wait_for(serve(middleware, headers=[LOGIN]), timeout=60)
    ends.set()
    await asyncio.gather(*strangers)


LOGIN = (b"cookie", b"sessionid=x")
TOKEN = (b"authorization", b"Token k")
PAGE, API = "/tasks/", "/api/v1/tasks/"


@pytest.mark.parametrize(
    ("path", "headers", "same_as"),
    [
        (PAGE, [(b"cookie", b"a=b; sessionid=x")], LOGIN),
        (PAGE, [(b"cookie", b"sessionid=x;theme=dark")], LOGIN),
        (PAGE, [(b"cookie", b'sessionid="x"')], LOGIN),
        (PAGE, [(b"cookie", b"sessionid=invented; sessionid=x")], LOGIN),
        (PAGE, [(b"authorization", b"Token invented"), LOGIN], LOGIN),
        (API, [(b"authorization", b"Basic invented"), LOGIN], LOGIN),
        (API, [(b"authorization", b"token   k"), (b"cookie", b"sessionid=invented")], TOKEN),
        (API, [TOKEN, LOGIN], TOKEN),
    ],
)
def test_credential_that_decides_identifies_the_caller(path: str, headers: Any, same_as: tuple[bytes, bytes]) -> None:
    expected = credential_of({**SCOPE, "path": API, "headers": [same_as]}, "sessionid")
    assert credential_of({**SCOPE, "path": path, "headers": headers}, "sessionid") == expected


ORIGIN = (b"origin", b"http://localhost")
BEARER = (b"authorization", b"Bearer k")


@pytest.mark.parametrize(
    ("scope", "same_as"),
    [
        ({"type": "websocket", "headers": [TOKEN, LOGIN]}, TOKEN),
        ({"type": "websocket", "headers": [ORIGIN, LOGIN]}, LOGIN),
        ({"type": "websocket", "headers": [ORIGIN, TOKEN, LOGIN]}, LOGIN),
        ({"path": "/mcp", "headers": [BEARER, LOGIN]}, TOKEN),
        ({"path": "/mcp/", "headers": [BEARER]}, TOKEN),
    ],
)
def test_credential_of_a_socket_and_of_mcp_identifies_the_caller(
    scope: dict[str, Any], same_as: tuple[bytes, bytes]
) -> None:
    expected = credential_of({**SCOPE, "path": API, "headers": [same_as]}, "sessionid")
    assert credential_of({**SCOPE, **scope}, "sessionid") == expected


def test_other_credentials_are_other_callers() -> None:
    credentials: list[Any] = [[], [LOGIN], [(b"cookie", b"sessionid=y")], [TOKEN], [(b"authorization", b"Token l")]]
    callers = {credential_of({**SCOPE, "path": API, "headers": headers}, "sessionid") for headers in credentials}
    assert len(callers) == len(credentials)


@pytest.fixture
def crowd(deployment: Deployment) -> Iterator[Counter[int]]:  # noqa: F811
    """Let one user send many requests at once, again and again; yield how they were answered."""
    deployment.serve()
    statuses, stopped = Counter[int](), threading.Event()
    request = Request("tasks", "/api/v1/tasks/", headers={"Authorization": f"Token {deployment.seeded['token']}"})

    def repeat() -> None:
        while not stopped.is_set():
            statuses[send(deployment.url, request)] += 1

    threads = [threading.Thread(target=repeat) for _ in range(CROWD)]
    for thread in threads:
        thread.start()
    yield statuses
    stopped.set()
    for thread in threads:
        thread.join()


def test_crowd_of_one_user_takes_no_connection_and_no_time_from_others(
    deployment: Deployment,  # noqa: F811
    crowd: Counter[int],
) -> None:
    for _ in range(5):
        with urllib.request.urlopen(f"{deployment.url}/login/", timeout=PATIENCE) as answer:
            assert answer.status == 200
    assert deployment.is_ready()
    assert crowd[200], "the crowd was served meanwhile"
    assert set(crowd) <= {200, 429}
