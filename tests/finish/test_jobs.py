"""The job carries out what is requested, and tries again what failed."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import sync_to_async

from sessions_app.finish.effects import EFFECTS
from sessions_app.finish.jobs import FinishJob
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
