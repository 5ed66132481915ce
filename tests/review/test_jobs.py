"""The lines of a branch are counted once after each turn, without delaying the sessions that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from executors_app.wire.errors import AgentctlUnreachable
from sessions_app.models import TaskSession, Turn
from sessions_app.review import jobs
from sessions_app.review.jobs import BranchCountsJob
from sessions_app.review.services import note_counts, sessions_to_count
from sessions_app.stream.stream_news import News
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.supervisor.loop import SupervisorLoop
from tests.supervisor.rows import fresh, make_session
from tests.waiting import eventually_async

FOUND = {"base": {"commit": "a" * 40}, "additions": 12, "deletions": 3, "truncated": False}


class FakeStream:
    """A stream whose agentctl answers, fails or stays silent."""

    ended = False

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.client = SimpleNamespace(branch_changes=self._answer)
        self.asked = 0
        self._find = answer

    async def _answer(self, base: str) -> Any:
        self.asked += 1
        found = self._find()
        return await found if asyncio.isfuture(found) else found


def unreachable() -> None:
    raise AgentctlUnreachable("It does not answer.")


def end_turn(session: TaskSession) -> Turn:
    now = timezone.now()
    return Turn.objects.create(
        session=session, message_id=f"m{Turn.objects.count()}", state="completed", started_at=now, ended_at=now
    )


def session_after_a_turn() -> TaskSession:
    session = make_session()
    end_turn(session)
    return session


@asynccontextmanager
async def running(streams: dict[TaskSession, FakeStream]) -> AsyncIterator[BranchCountsJob]:
    """Run the job with these streams attached."""
    supervisor = SupervisorLoop()
    job = next(job for job in supervisor.jobs if isinstance(job, BranchCountsJob))
    attached = cast("dict[Any, Any]", supervisor.registry.streams)
    attached.update({session.id: stream for session, stream in streams.items()})

    async def repeat() -> None:
        while True:
            await job.run_step()

    steps = asyncio.create_task(repeat())
    try:
        yield job
    finally:
        steps.cancel()
        await asyncio.gather(steps, return_exceptions=True)
        attached.clear()
        for each in supervisor.jobs:
            await each.stop()
            await each.finish()
        await supervisor.registry.close()


async def counted(session: TaskSession) -> int | None:
    return cast("TaskSession", await sync_to_async(fresh)(session)).branch_additions


@pytest.mark.django_db(transaction=True)
async def test_lines_are_counted_once_after_each_turn() -> None:
    session = await sync_to_async(session_after_a_turn)()
    found = dict(FOUND)
    stream = FakeStream(lambda: found)
    async with running({session: stream}) as job:
        await eventually_async(lambda: is_counted(session, 12), describe="the first count")
        found["additions"] = 20
        await sync_to_async(end_turn)(session)
        job.handle_news(cast("ExecutionStream", stream), [News.TURN_ENDED])
        await eventually_async(lambda: is_counted(session, 20), describe="the count after the next turn")
    assert stream.asked == 2


async def is_counted(session: TaskSession, additions: int) -> bool:
    return await counted(session) == additions


@pytest.mark.django_db(transaction=True)
async def test_workspace_that_does_not_answer_is_asked_once_and_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "CHECK_EVERY", 0.01)
    monkeypatch.setattr(jobs, "ANSWER_WITHIN", 0.2)
    made = [await sync_to_async(session_after_a_turn)() for _ in range(3)]
    silent, failing, answering = made
    never = asyncio.get_running_loop().create_future()
    streams = {
        silent: FakeStream(lambda: never),
        failing: FakeStream(unreachable),
        answering: FakeStream(lambda: FOUND),
    }
    async with running(streams):
        await eventually_async(lambda: is_counted(answering, 12), describe="the one that answers")
        await eventually_async(is_given_up(never), describe="the one that is silent")
        await sync_to_async(end_turn)(answering)
        await eventually_async(lambda: has_asked(streams[answering], 2), describe="another round")
    assert [streams[session].asked for session in made] == [1, 1, 2]
    assert [await counted(session) for session in (silent, failing)] == [None, None]


def is_given_up(future: asyncio.Future[Any]) -> Callable[[], Any]:
    async def check() -> bool:
        return future.cancelled()

    return check


async def has_asked(stream: FakeStream, count: int) -> bool:
    return stream.asked == count


@pytest.mark.django_db
@pytest.mark.any_database
def test_only_sessions_whose_newest_turn_has_ended_since_are_counted(django_assert_num_queries: Any) -> None:
    ended, counted_already, open_turn, without_turns, archived = (make_session() for _ in range(5))
    turn = end_turn(ended)
    end_turn(counted_already)
    note_counts(counted_already, FOUND, timezone.now() + timedelta(seconds=1))
    end_turn(open_turn)
    later = timezone.now() + timedelta(seconds=1)
    Turn.objects.create(session=open_turn, message_id="open", state="running", started_at=later)
    end_turn(archived)
    type(archived.task).objects.filter(id=archived.task_id).update(archived_at=timezone.now())
    sessions = [session.id for session in (ended, counted_already, open_turn, without_turns, archived)]
    with django_assert_num_queries(1):
        found = sessions_to_count(sessions)
        assert [(session.task.base_branch, ended_at) for session, ended_at in found] == [("", turn.ended_at)]
    assert sessions_to_count([]) == []
