"""The authorization matrix of the sockets: every address and every action, by every role."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sessions_app.kernel.database_threads import run_in_database
from sessions_app.routing import websockets
from sessions_app.stream.socket_actions import ACTIONS as KNOWN
from tests.rights.socket_matrix import ACTIONS, HELLO, PAYLOADS, SOCKETS
from tests.rights.world import ROLES, Cast, make_cast
from tests.stream.live.sockets import Headers, connected, of_page

HOW_TO = "has no row: say in tests/rights/socket_matrix.py who may use it"
ANSWERED_AT_ONCE = {"ping"}


def routes() -> set[str]:
    """Return the routes of the sockets, below the middleware."""
    application: Any = websockets
    while not hasattr(application, "routes"):
        application = application.inner
    return {str(route.pattern) for route in application.routes}


@pytest.fixture
def cast(transactional_db: None) -> Cast:
    return make_cast()


def headers(cast: Cast, role: str) -> Headers:
    user = cast.people[role]
    return of_page(user) if user else {"Host": "localhost", "Origin": "http://localhost"}


def test_every_socket_and_every_action_has_a_row() -> None:
    for route in routes():
        assert route in SOCKETS, f"the socket {route!r} {HOW_TO}"
    for action in {*KNOWN, *ANSWERED_AT_ONCE}:
        assert action in ACTIONS, f"the action {action!r} {HOW_TO}"
    assert set(SOCKETS) == routes()
    assert set(ACTIONS) == {*KNOWN, *ANSWERED_AT_ONCE}


@pytest.mark.parametrize("route", SOCKETS)
async def test_each_role_gets_the_close_code_of_the_table(cast: Cast, route: str) -> None:
    things = {"sessions": cast.world.session.id, "tasks": cast.world.task.id}
    noun = next((noun for noun in things if noun in route), "")
    path = "/" + re.sub(r"\(.*\)", str(things[noun]), route.strip("^$")) if noun else "/ws/nothing/"
    for role, code in zip(ROLES, SOCKETS[route], strict=True):
        async with connected(path, await run_in_database(headers, cast, role)) as socket:
            if code == HELLO:
                assert (await socket.frame())["type"] == "hello", role
            else:
                assert await socket.close_code() == code, role


@pytest.mark.parametrize("role", ["viewer", "member"])
@pytest.mark.parametrize("noun", ["sessions", "tasks"])
async def test_each_role_may_run_the_listed_actions(cast: Cast, role: str, noun: str) -> None:
    thing = cast.world.session if noun == "sessions" else cast.world.task
    async with connected(f"/ws/{noun}/{thing.id}/", await run_in_database(headers, cast, role)) as socket:
        await socket.frame()
        for action, expected in ACTIONS.items():
            given = {
                name: value.format(**cast.names) if isinstance(value, str) else value
                for name, value in PAYLOADS.get(action, {}).items()
            }
            payload = {**given, "session_id": str(cast.world.session.id)}
            answer = await socket.ask(action, payload)
            assert ("ok" if answer["ok"] else answer["error"]["code"]) == expected[role], action
