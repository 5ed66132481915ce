"""Threads that wait for an executor's machine: each machine has its own, so a silent one delays only its sessions.

The files that a dead agentctl left may be on another machine, and reading them blocks.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Final, ParamSpec, TypeVar

from executors_app.wire.executions import ExecutionFacts

P = ParamSpec("P")
T = TypeVar("T")
_THREADS: Final = 4
"""Threads of each machine."""
_MAX_PLACES: Final = 64
"""Machines whose threads are kept; those of the one that was not used for longest end when they are idle."""


def place_of(facts: ExecutionFacts) -> str:
    """Return what identifies the machine on which an execution runs: its runtime with the executor's settings."""
    return f"{facts.runtime} {sorted(facts.config.items(), key=repr)}"


@lru_cache(_MAX_PLACES)
def _threads_of(place: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="place")


async def in_place_thread(
    facts: ExecutionFacts, function: Callable[P, T], *arguments: P.args, **options: P.kwargs
) -> T:
    """Call a function that may wait for the machine on which an execution runs."""
    call = partial(contextvars.copy_context().run, partial(function, *arguments, **options))
    return await asyncio.get_running_loop().run_in_executor(_threads_of(place_of(facts)), call)
