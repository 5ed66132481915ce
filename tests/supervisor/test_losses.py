"""A session that is lost again while somebody looks at it is looked at again."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from sessions_app.supervisor import recheck_queue
from sessions_app.supervisor.recheck_queue import RecheckQueue

FIRST, SECOND = uuid.uuid4(), uuid.uuid4()


async def test_what_is_told_of_several_times_is_taken_once() -> None:
    queue = RecheckQueue()
    queue.add({FIRST})
    queue.add({FIRST, SECOND})
    assert await queue.take() == {FIRST, SECOND}


async def test_what_is_told_of_while_it_is_looked_at_needs_another_look() -> None:
    queue = RecheckQueue()
    queue.add({FIRST})
    await queue.take()
    queue.add({FIRST})  # the first look has not ended
    assert await queue.take() == {FIRST}


async def test_where_nothing_is_lost_nothing_is_taken() -> None:
    queue = RecheckQueue()
    queue.add({FIRST})
    await queue.take()
    waiting = asyncio.create_task(queue.take())
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done()
    queue.add({SECOND})
    assert await waiting == {SECOND}


async def test_what_nobody_could_tell_anything_of_is_looked_at_again_some_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recheck_queue, "RETRY_UNKNOWN_AFTER", (0.0, 0.0))
    queue = RecheckQueue()
    queue.add({FIRST, SECOND})
    looks = [await queue.take()]
    queue.record_result(looks[0], {FIRST})
    for _ in recheck_queue.RETRY_UNKNOWN_AFTER:
        looks.append(await asyncio.wait_for(queue.take(), 5))
        queue.record_result(looks[-1], {FIRST})
    assert looks == [{FIRST, SECOND}, {FIRST}, {FIRST}]
    waiting = asyncio.create_task(queue.take())
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done(), "the passes of the loop look after it from now on"
    waiting.cancel()
