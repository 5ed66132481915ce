"""The threads in which Docker engines are called, so that a slow engine delays no other."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Final, TypeVar

from executors_app.fair_threads import FairThreads
from executors_app.runtimes.containers.connection import EngineAddress
from executors_app.runtimes.containers.engine import Engine, open_engine

T = TypeVar("T")

READY_TIMEOUT: Final = 60.0
"""Seconds within which an engine has to answer."""
_THREADS: Final = {"calls": 8, "stops": 16}
_WORKSPACE_THREADS: Final = 32
"""Threads of each engine. One that does not answer keeps its own waiting, and none of another engine. Whatever prepares
or reads workspaces may wait for minutes, for a team's repository too, and a container may take ten seconds to stop. So
both have others than the short calls: the other containers would be unknown while many are stopped."""
_MAX_ENGINES: Final = 64
"""Engines whose threads are kept; those of an engine that was not called for longest end when they are idle."""


@lru_cache(_MAX_ENGINES * len(_THREADS))
def _threads_of(address: EngineAddress, kind: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS[kind], thread_name_prefix=f"engine {kind}")


@lru_cache(_MAX_ENGINES)
def _workspace_threads_of(address: EngineAddress) -> FairThreads:
    return FairThreads(_WORKSPACE_THREADS, "engine workspaces")


async def call_engine(
    address: EngineAddress, call: Callable[[Engine], T], timeout: float = READY_TIMEOUT, *, kind: str = "calls"
) -> T:
    """Call an engine in one of its threads; ``kind`` says in which (``_THREADS``)."""
    run = partial(contextvars.copy_context().run, _with_engine, address, call, timeout)
    return await asyncio.get_running_loop().run_in_executor(_threads_of(address, kind), run)


async def call_for_workspace(address: EngineAddress, repository: str, call: Callable[[Engine], T]) -> T:
    """Call an engine for a workspace of a repository, which may take minutes; a slow one leaves threads to others."""
    run = partial(_with_engine, address, call, READY_TIMEOUT)
    return await _workspace_threads_of(address).call(repository, run)


def _with_engine(address: EngineAddress, call: Callable[[Engine], T], timeout: float) -> T:
    with open_engine(address, timeout) as engine:
        return call(engine)
