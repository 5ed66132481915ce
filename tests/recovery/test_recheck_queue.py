"""A session that is lost again during its check is checked again."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from sessions_app.recovery import recheck_queue
from sessions_app.recovery.recheck_queue import RecheckQueue
from tests.waiting import PATIENCE

FIRST, SECOND = uuid.uuid4(), uuid.uuid4()


async def test_session_added_several_times_is_taken_once() -> None:
    queue = RecheckQueue()
    queue.add({FIRST})
    queue.add({FIRST, SECOND})
    assert await queue.take() == {FIRST, SECOND}


async def test_session_added_during_its_check_is_checked_again() -> None:
    queue = RecheckQueue()
    queue.add({FIRST})
    await queue.take()
    queue.add({FIRST})  # the first check has not ended
    assert await queue.take() == {FIRST}


async def test_empty_queue_waits() -> None:
    queue = RecheckQueue()
    queue.add({FIRST})
    await queue.take()
    waiting = asyncio.create_task(queue.take())
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done()
    queue.add({SECOND})
    assert await waiting == {SECOND}


async def test_session_with_an_unknown_result_is_rechecked_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recheck_queue, "RETRY_UNKNOWN_AFTER", (0.0, 0.0))
    queue = RecheckQueue()
    queue.add({FIRST, SECOND})
    looks = [await queue.take()]
    queue.record_result(looks[0], {FIRST})
    for _ in recheck_queue.RETRY_UNKNOWN_AFTER:
        looks.append(await asyncio.wait_for(queue.take(), PATIENCE))
        queue.record_result(looks[-1], {FIRST})
    assert looks == [{FIRST, SECOND}, {FIRST}, {FIRST}]
    waiting = asyncio.create_task(queue.take())
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done(), "the periodic passes recheck it from now on"
    waiting.cancel()
