"""The jobs that a supervisor runs; a disabled job costs nothing."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from typing import Any, cast

import pytest

from sessions_app.stream.stream_news import News
from sessions_app.supervisor import leases, loop
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.supervisor.loop import SupervisorLoop
from sessions_app.workflows.driver.driver import WorkflowDriver
from tests.waiting import PATIENCE

ELSEWHERE = {"exit events", "export", "workflows"}
"""Jobs whose steps are methods of other classes."""


async def new_supervisor() -> SupervisorLoop:
    return SupervisorLoop([WorkflowDriver])


async def close_unstarted(supervisor: SupervisorLoop) -> None:
    """Close the thread pools of a supervisor that never ran."""
    for extension in supervisor.extensions:
        await extension.close()
    await supervisor.exporter.close()
    await supervisor.registry.close()


@pytest.mark.django_db(transaction=True)
async def test_every_job_of_the_supervisor_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "is_shared_database", lambda: True)
    supervisor = await new_supervisor()
    spawned: dict[str, Any] = {}
    monkeypatch.setattr(supervisor, "_spawn", spawned.__setitem__)
    monkeypatch.setattr(supervisor, "close", lambda: asyncio.sleep(0))
    stop = asyncio.Event()
    stop.set()
    try:
        await supervisor.run(stop, first_sweep=False)
    finally:
        await close_unstarted(supervisor)
    steps = {
        name
        for name, method in inspect.getmembers(SupervisorLoop, inspect.iscoroutinefunction)
        if name.startswith("_") and list(inspect.signature(method).parameters) == ["self"]
    }
    started = {job.__name__ for job in spawned.values() if job.__name__ in steps}
    assert started == steps, "a step of the loop is never started"
    assert spawned.keys() >= ELSEWHERE
    assert len(spawned) == len(steps) + len(ELSEWHERE)


@pytest.mark.django_db(transaction=True)
async def test_disabled_job_is_not_started(settings: Any) -> None:
    supervisor = await new_supervisor()
    try:
        assert "idle sleep" in supervisor.jobs()
        settings.KANDEV_IDLE_SLEEP = 0
        assert "idle sleep" not in supervisor.jobs()
    finally:
        await close_unstarted(supervisor)


@pytest.mark.django_db(transaction=True)
async def test_without_stall_notice_the_check_pauses_for_the_longest_interval(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.KANDEV_STALL_NOTICE = 0
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    supervisor = await new_supervisor()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(loop.asyncio, "sleep", note)  # type: ignore[attr-defined]
            await supervisor._report_stalls()
    finally:
        await close_unstarted(supervisor)
    assert pauses == [loop.STALLS_EVERY]


@pytest.mark.django_db(transaction=True)
async def test_work_that_arrives_during_a_dispatch_is_dispatched_next(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = await new_supervisor()

    async def wake_pending() -> None:
        supervisor._work_available.set()

    monkeypatch.setattr(supervisor.dispatcher, "wake_pending", wake_pending)
    try:
        await asyncio.wait_for(supervisor._dispatch_pending_work(), PATIENCE)
    finally:
        await close_unstarted(supervisor)


class Stream:
    """The attributes that the loop reads of a stream with news."""

    def __init__(self) -> None:
        self.session_id = uuid.uuid4()


@pytest.mark.django_db(transaction=True)
async def test_only_an_agent_dying_again_without_a_turn_is_checked_later() -> None:
    supervisor, stream = await new_supervisor(), cast("ExecutionStream", Stream())

    def is_rechecked_at_once(*news: News) -> bool:
        supervisor._recheck_queue._sessions.clear()
        supervisor.handle_news(stream, [*news, News.AGENT_GONE])
        return stream.session_id in supervisor._recheck_queue._sessions

    try:
        assert is_rechecked_at_once()
        assert not is_rechecked_at_once()
        assert not is_rechecked_at_once(News.TURN_ENDED)
        assert is_rechecked_at_once(News.TURN_ENDED, News.TURN_COMPLETED)
        assert not is_rechecked_at_once()
    finally:
        await close_unstarted(supervisor)
