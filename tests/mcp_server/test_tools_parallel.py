"""Many parallel calls of one user leave threads for everybody else."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import Any

import pytest

from sessions_app.kernel.database_threads import run_for_user, run_in_database
from sessions_app.mcp_server import tools
from tests.api.world import World
from tests.mcp_server.clients import http_client, new_token
from tests.mcp_server.test_size_limit import HEADERS, call_of
from tests.waiting import eventually_async

pytestmark = pytest.mark.django_db(transaction=True)


async def test_parallel_calls_of_one_user_take_one_thread(served_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, ends, begun = tools.TOOLS_BY_NAME["list_sessions"], threading.Event(), list[int]()
    run = tool.run
    assert run is not None

    def run_slowly(user: Any, arguments: Any) -> Any:
        begun.append(user.pk)
        ends.wait(60)
        return run(user, arguments)

    monkeypatch.setitem(tools.TOOLS_BY_NAME, "list_sessions", dataclasses.replace(tool, run=run_slowly))
    bearer = {**HEADERS, "Authorization": f"Bearer {await run_in_database(new_token, served_world.member)}"}
    async with http_client(bearer) as http:
        calls = [
            asyncio.create_task(http.post("http://localhost/mcp", json=call_of("list_sessions", {}))) for _ in range(8)
        ]
        await eventually_async(lambda: begun, describe="a call has begun")
        async with asyncio.timeout(30):
            assert await run_in_database(lambda: "answer") == "answer"
        assert len(begun) == 1
        ends.set()
        assert {answer.status_code for answer in await asyncio.gather(*calls)} == {200}


async def test_call_whose_client_is_gone_keeps_its_turn_until_it_ends() -> None:
    ends, begun = threading.Event(), list[int]()

    def run_slowly(number: int) -> int:
        begun.append(number)
        ends.wait(60)
        return number

    first = asyncio.create_task(run_for_user(7, run_slowly, 1))
    await eventually_async(lambda: begun == [1], describe="the first call has begun")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = asyncio.create_task(run_for_user(7, run_slowly, 2))
    for _ in range(3):  # meanwhile, a thread was free for the second call, too
        assert await run_in_database(lambda: "answer") == "answer"
    assert (first.cancelled(), begun) == (True, [1])
    ends.set()
    async with asyncio.timeout(30):
        assert await second == 2


async def test_error_of_a_call_reaches_its_caller_and_ends_its_turn() -> None:
    def fail() -> None:
        raise ValueError("broken")

    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            await run_for_user(7, fail)
