"""While the database is unavailable, sockets close with the code for retrying, and requests get the API's error."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError

from sessions_app.kernel.database_threads import run_in_database
from sessions_app.stream.live import authentication
from tests.api.world import World
from tests.stream.live.sockets import connected, of_page, of_program, path_of


def unreachable(*args: Any, **kwargs: Any) -> Any:
    raise OperationalError("database is locked")


@pytest.mark.parametrize("path", ["/ws/sessions/{session}/", "/ws/sessions/{session}/shell/", "/ws/tasks/{task}/"])
async def test_program_gets_the_retry_close_code(world: World, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    headers = await run_in_database(of_program, world.member)
    monkeypatch.setattr(authentication.Principal, "user", unreachable)
    async with connected(path.format(session=world.session.id, task=world.task.id), headers) as socket:
        assert await socket.close_code() == 4503


async def test_page_whose_login_cannot_be_read_gets_the_retry_close_code(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = await run_in_database(of_page, world.member)
    monkeypatch.setattr("channels.auth._get_user_session_key", unreachable)
    async with connected(path_of(world.session), headers) as socket:
        assert await socket.close_code() == 4503


async def test_client_whose_backlog_cannot_be_read_gets_the_retry_close_code(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = await run_in_database(of_program, world.member)
    monkeypatch.setattr("sessions_app.stream.live.hub.load_lines_after", unreachable)
    async with connected(path_of(world.session), headers) as socket:
        assert await socket.close_code() == 4503


async def test_request_gets_the_api_error_and_the_socket_stays_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = await run_in_database(of_program, world.member)
    async with connected(path_of(world.session), headers) as socket:
        await socket.frame()
        monkeypatch.setattr("sessions_app.stream.socket_actions.find_session", unreachable)
        answer = await socket.ask("task.session.status")
        assert (answer["ok"], answer["error"]["code"]) == (False, "database_busy")
        assert (await socket.ask("ping"))["ok"] is True
