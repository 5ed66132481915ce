"""A session that is lost again while somebody looks at it is looked at again."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from sessions_app.supervisor import recheck_queue as of_losses
from sessions_app.supervisor.recheck_queue import RecheckQueue

FIRST, SECOND = uuid.uuid4(), uuid.uuid4()


async def test_what_is_told_of_several_times_is_taken_once() -> None:
    losses = RecheckQueue()
    losses.tell({FIRST})
    losses.tell({FIRST, SECOND})
    assert await losses.take() == {FIRST, SECOND}


async def test_what_is_told_of_while_it_is_looked_at_needs_another_look() -> None:
    losses = RecheckQueue()
    losses.tell({FIRST})
    await losses.take()
    losses.tell({FIRST})  # the first look has not ended
    assert await losses.take() == {FIRST}


async def test_where_nothing_is_lost_nothing_is_taken() -> None:
    losses = RecheckQueue()
    losses.tell({FIRST})
    await losses.take()
    waiting = asyncio.create_task(losses.take())
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done()
    losses.tell({SECOND})
    assert await waiting == {SECOND}


async def test_what_nobody_could_tell_anything_of_is_looked_at_again_some_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(of_losses, "RETRY_UNKNOWN_AFTER", (0.0, 0.0))
    losses = RecheckQueue()
    losses.tell({FIRST, SECOND})
    looks = [await losses.take()]
    losses.record_result(looks[0], {FIRST})
    for _ in of_losses.RETRY_UNKNOWN_AFTER:
        looks.append(await asyncio.wait_for(losses.take(), 5))
        losses.record_result(looks[-1], {FIRST})
    assert looks == [{FIRST, SECOND}, {FIRST}, {FIRST}]
    waiting = asyncio.create_task(losses.take())
    await asyncio.wait([waiting], timeout=0.05)
    assert not waiting.done(), "the passes of the loop look after it from now on"
    waiting.cancel()
