"""Notice when a host falls silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from django.conf import settings

from executors_app.backoff import jittered_delay
from executors_app.wire.errors import AgentctlUnreachable, ExecutorError
from executors_app.wire.executions import ExitEvent

_WATCH_INTERVAL: Final = 0.15
_WATCH_TIMEOUT: Final = 0.6
"""Share of ``KANDEV_SWEEP_TIMEOUT``, both for the interval between calls and for each answer."""


async def watch_for_silence(ask: Callable[[float], Awaitable[Any]]) -> AsyncIterator[ExitEvent]:
    """Yield an event when the host falls silent and when it answers again; never ends and raises nothing.

    ``ask`` makes one call within the seconds that it is given; raises ExecutorError.
    """
    failures = 0
    while True:
        limit = settings.KANDEV_SWEEP_TIMEOUT
        try:
            await ask(limit * _WATCH_TIMEOUT)
        except AgentctlUnreachable:
            failures += 1
            if failures == 1:
                yield ExitEvent("", silent=True)
        except ExecutorError:
            pass  # something answers there, so it is not silent; sweeps check what it is
        else:
            if failures:
                yield ExitEvent("")
            failures = 0
        delay = limit * _WATCH_INTERVAL
        if failures:
            delay = jittered_delay(failures, delay)
        await asyncio.sleep(delay)
