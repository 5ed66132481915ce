"""A session's queue retries failed work by itself, and a wake-up does not shorten the delay."""

from __future__ import annotations

import asyncio
import uuid

from sessions_app.supervisor.dispatcher import SessionQueue
from tests.waiting import eventually_async


async def test_failed_work_is_retried_but_not_at_every_wake() -> None:
    tries = []

    async def do_work() -> None:
        tries.append(uuid.uuid4())
        if len(tries) < 3:
            raise RuntimeError("this row is beyond us")

    queue = SessionQueue(do_work)
    for _ in range(50):
        queue.wake()
        await asyncio.sleep(0)
    assert len(tries) == 1
    await eventually_async(lambda: len(tries) == 3, describe="the row is tried three times")
