"""Whether a host still answers, asked all the time: a machine that hangs closes none of its connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from django.conf import settings

from executors_app.domain import Death
from executors_app.errors import AgentctlUnreachable, ExecutorError
from executors_app.patience import pause

_PAUSE: Final = 0.15
_ANSWER: Final = 0.6
"""Of ``KANDEV_SWEEP_TIMEOUT``: between two questions, and for each answer. The rest is left for what follows."""


async def silences(ask: Callable[[float], Awaitable[Any]]) -> AsyncIterator[Death]:
    """Tell that the host has fallen silent, and later that it answers again; for ever, and raises nothing.

    ``ask`` puts one question and raises ExecutorError; it is given the seconds that the answer may take.
    """
    failures = 0
    while True:
        limit = settings.KANDEV_SWEEP_TIMEOUT
        try:
            await ask(limit * _ANSWER)
        except AgentctlUnreachable:
            failures += 1
            if failures == 1:
                yield Death("", silent=True)
        except ExecutorError:
            pass  # somebody answers there: what that is worth, the sweeps find out
        else:
            if failures:
                yield Death("")
            failures = 0
        await asyncio.sleep(pause(failures, limit * _PAUSE) if failures else limit * _PAUSE)
