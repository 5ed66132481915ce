"""The job carries out what is requested, and tries again what failed."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import sync_to_async

from sessions_app.finish.effects import EFFECTS
from sessions_app.finish.execution import Place
from sessions_app.finish.jobs import FinishJob, Slots
from sessions_app.finish.models import FinishIntent
from sessions_app.finish.rules.finish import FinishKind, FinishState
from sessions_app.supervisor.loop import SupervisorLoop
from tests.finish.intents import RESULT, RecordedEffect, request
from tests.supervisor.rows import fresh
from tests.waiting import eventually_async


class FailsOnce(RecordedEffect):
    """A target whose repository cannot be used at first, and with an error that nobody expects."""

    def prepare(self, intent: FinishIntent) -> str:
        """Fail the first time."""
        if not self.calls:
            self.calls.append("failed")
            raise RuntimeError("nobody expects this")
        return super().prepare(intent)


@pytest.mark.django_db(transaction=True)
async def test_job_carries_out_what_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    effect = FailsOnce()
    monkeypatch.setitem(EFFECTS, FinishKind.MERGE, effect)
    intent = await sync_to_async(request)()

    async def is_done() -> bool:
        return bool((await sync_to_async(fresh)(intent)).state == FinishState.DONE)

    supervisor = SupervisorLoop()
    job = next(job for job in supervisor.jobs if isinstance(job, FinishJob))
    step = asyncio.create_task(job.run_step())
    try:
        await eventually_async(is_done, describe="the merge is done")
    finally:
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
        for each in supervisor.jobs:
            await each.stop()
            await each.finish()
        await supervisor.registry.close()
    assert effect.target == RESULT
    assert effect.calls == ["failed", "prepare", "apply"]


async def test_stuck_server_and_repository_leave_slots_to_others() -> None:
    slots, held, tasks = Slots(), [], []
    end = asyncio.Event()

    async def hold(name: str, place: Place) -> None:
        async with slots.take(place):
            held.append(name)
            await end.wait()

    async def holders() -> list[str]:
        for _ in range(10):  # whoever can go on has gone on
            await asyncio.sleep(0)
        return sorted(held)

    for number in range(4):
        tasks.append(asyncio.create_task(hold(f"stuck {number}", Place(f"remote {number}", "host stuck"))))
        tasks.append(asyncio.create_task(hold(f"same {number}", Place("repository a"))))
    assert await holders() == ["same 0", "stuck 0", "stuck 1"]
    tasks.append(asyncio.create_task(hold("other server", Place("remote 9", "host other"))))
    tasks.append(asyncio.create_task(hold("merge", Place("repository b"))))
    assert await holders() == ["merge", "other server", "same 0", "stuck 0", "stuck 1"]
    end.set()
    await asyncio.gather(*tasks)
    assert len(held) == 10
