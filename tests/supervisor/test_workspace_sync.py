"""The work of far workspaces comes home after each snapshot: one way at a time, tried again, given up in the end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from executors_app import plugins
from executors_app.domain import ExecutionFacts
from executors_app.errors import RuntimeUnavailable, WorkspaceGone
from sessions_app.supervisor.workspace_sync import WorkspaceSync
from tests.waiting import eventually_async


class FarRuntime:
    """Brings home what it is let to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.brought: list[int] = []
        self.tries = 0
        self.refusals: list[Exception] = []

    async def push_work(self, execution: ExecutionFacts) -> bool:
        """Waits for the way to be open."""
        self.tries += 1
        await self.open.wait()
        if self.refusals:
            raise self.refusals.pop()
        self.brought.append(execution.generation)
        return True


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> FarRuntime:
    """One far runtime, and one whose workspaces are at home."""
    made = FarRuntime()
    monkeypatch.setattr(plugins, "runtimes", lambda: {"far": made, "near": SimpleNamespace()})
    return made


def facts(number: int, runtime: str = "far") -> Any:
    """A session's execution; the number tells one snapshot from another."""
    return SimpleNamespace(session_id="s", runtime=runtime, generation=number)


async def test_what_becomes_due_on_the_way_follows_once(far: FarRuntime) -> None:
    sync = WorkspaceSync()
    far.open.clear()
    sync.request(facts(1))
    await eventually_async(lambda: far.tries == 1, describe="the first is on its way")
    for number in (2, 3):
        sync.request(facts(number))
    far.open.set()
    await eventually_async(lambda: far.brought == [1, 3], describe="the last one followed")
    await sync.close()


async def test_what_fails_is_tried_again(far: FarRuntime) -> None:
    sync = WorkspaceSync()
    far.refusals = [RuntimeUnavailable("away")]
    sync.request(facts(1))
    await eventually_async(lambda: far.brought == [1], describe="it came in the end")
    await sync.close()


async def test_what_can_never_come_is_given_up_until_the_next_snapshot(far: FarRuntime) -> None:
    sync = WorkspaceSync()
    far.refusals = [WorkspaceGone("gone")]
    sync.request(facts(1))
    await eventually_async(lambda: not far.refusals, describe="it was tried")
    sync.request(facts(2))
    await eventually_async(lambda: far.brought == [2], describe="the next one came")
    await sync.close()


async def test_nothing_is_brought_from_where_the_repository_is_at_home(far: FarRuntime) -> None:
    sync = WorkspaceSync()
    sync.request(facts(1, "near"))
    sync.request(facts(2))
    await eventually_async(lambda: far.brought == [2], describe="the far one came")
    await sync.close()
