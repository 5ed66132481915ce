"""Functions of workflows that do not end take no thread from the rest of the supervisor."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sessions_app.workflows.driver.function_calls import call_function
from sessions_app.workflows.language import sandbox


class HangingSandbox:
    """A sandbox whose calls with the code ``hang`` end only when they are released."""

    def __init__(self) -> None:
        self.is_released = threading.Event()

    def run(self, requests: Any, timeout: float = 0) -> list[Any]:
        if requests[0]["code"] == "hang":
            self.is_released.wait(60)
        return [requests[0]["code"]]


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingSandbox]:
    found = HangingSandbox()
    monkeypatch.setattr(sandbox, "run_in_sandbox", found.run)
    yield found
    found.is_released.set()


def call(team_id: int, code: str) -> asyncio.Task[dict[str, Any]]:
    return asyncio.create_task(call_function(team_id, {"operation": "call", "code": code, "inputs": {}}))


async def test_functions_that_do_not_end_leave_the_threads_of_the_supervisor_free(hanging: HangingSandbox) -> None:
    calls = [call(1, "hang") for _ in range(40)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "answer"), timeout=60) == "answer"
    hanging.is_released.set()
    assert await asyncio.gather(*calls) == [{"value": "hang"}] * 40


async def test_functions_of_one_team_leave_threads_to_other_teams(hanging: HangingSandbox) -> None:
    calls = [call(1, "hang") for _ in range(40)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(call(2, "ends"), timeout=60) == {"value": "ends"}
    assert not any(each.done() for each in calls)
    hanging.is_released.set()
    assert await asyncio.gather(*calls) == [{"value": "hang"}] * 40


async def test_functions_of_several_teams_leave_threads_to_another_team(hanging: HangingSandbox) -> None:
    calls = [call(team, "hang") for _ in range(20) for team in (1, 2, 3)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(call(4, "ends"), timeout=60) == {"value": "ends"}
    assert not any(each.done() for each in calls)
    hanging.is_released.set()
    assert await asyncio.gather(*calls) == [{"value": "hang"}] * 60


async def test_cancelled_calls_leave_their_turns_to_others(hanging: HangingSandbox) -> None:
    calls = [call(1, "hang") for _ in range(40)]
    await asyncio.sleep(0)
    for each in calls:
        each.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    hanging.is_released.set()
    assert await asyncio.wait_for(call(1, "ends"), timeout=60) == {"value": "ends"}
    assert all(each.cancelled() for each in calls)
