"""The jobs that a supervisor runs; a disabled job costs nothing."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest

import sessions_app
from sessions_app.jobs import JOBS
from sessions_app.stream.stream_news import News
from sessions_app.supervisor import leases
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.supervisor.job import Job
from sessions_app.supervisor.jobs import DispatchJob
from sessions_app.supervisor.loop import SupervisorLoop
from sessions_app.turns import jobs as turns_jobs
from sessions_app.turns.jobs import StallsJob
from tests.waiting import PATIENCE


async def new_supervisor() -> SupervisorLoop:
    return SupervisorLoop()


async def close_unstarted(supervisor: SupervisorLoop) -> None:
    """Close the thread pools of a supervisor that never ran."""
    for job in supervisor.jobs:
        await job.stop()
        await job.finish()
    await supervisor.registry.close()


def declared_jobs() -> Iterator[type[Job]]:
    """Yield every job that a topic declares in its ``jobs``."""
    for path in Path(str(sessions_app.__file__)).parent.glob("*/jobs.py"):
        module = import_module(f"sessions_app.{path.parent.name}.jobs")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Job) and value.__module__ == module.__name__:
                yield value


@pytest.mark.django_db(transaction=True)
async def test_every_job_of_the_supervisor_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(declared_jobs()) == set(JOBS), "a job is not in the list of all jobs"
    monkeypatch.setattr(leases, "is_shared_database", lambda: True)
    supervisor = await new_supervisor()
    spawned: list[str] = []
    monkeypatch.setattr(supervisor, "_spawn", lambda name, step: spawned.append(name))
    monkeypatch.setattr(supervisor, "close", lambda: asyncio.sleep(0))
    stop = asyncio.Event()
    stop.set()
    try:
        await supervisor.run(stop, first_sweep=False)
    finally:
        await close_unstarted(supervisor)
    assert spawned == ["renew leases", *(job.name for job in JOBS)]
    assert len(set(spawned)) == len(spawned), "two jobs share a name"


def enabled_jobs(supervisor: SupervisorLoop) -> set[str]:
    """Return the names of the jobs that would run."""
    return {job.name for job in supervisor.jobs if job.is_enabled()}


@pytest.mark.django_db(transaction=True)
async def test_disabled_job_is_not_started(settings: Any) -> None:
    supervisor = await new_supervisor()
    try:
        assert "idle sleep" in enabled_jobs(supervisor)
        settings.KANDEV_IDLE_SLEEP = 0
        assert "idle sleep" not in enabled_jobs(supervisor)
    finally:
        await close_unstarted(supervisor)


@pytest.mark.django_db(transaction=True)
async def test_without_a_short_silence_that_matters_the_check_pauses_for_the_longest_interval(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.KANDEV_STALL_NOTICE = 0
    settings.KANDEV_AGENT_TURN_QUIET = 1000
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    supervisor = await new_supervisor()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(turns_jobs.asyncio, "sleep", note)  # type: ignore[attr-defined]
            await StallsJob(supervisor).run_step()
    finally:
        await close_unstarted(supervisor)
    assert pauses == [turns_jobs.STALLS_EVERY]


@pytest.mark.django_db(transaction=True)
async def test_work_that_arrives_during_a_dispatch_is_dispatched_next(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = await new_supervisor()

    async def wake_pending() -> None:
        supervisor.dispatcher.announce_work()

    monkeypatch.setattr(supervisor.dispatcher, "wake_pending", wake_pending)
    try:
        await asyncio.wait_for(DispatchJob(supervisor).run_step(), PATIENCE)
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
        supervisor.rechecks._sessions.clear()
        supervisor.handle_news(stream, [*news, News.AGENT_GONE])
        return stream.session_id in supervisor.rechecks._sessions

    try:
        assert is_rechecked_at_once()
        assert not is_rechecked_at_once()
        assert not is_rechecked_at_once(News.TURN_ENDED)
        assert is_rechecked_at_once(News.TURN_ENDED, News.TURN_COMPLETED)
        assert not is_rechecked_at_once()
    finally:
        await close_unstarted(supervisor)
