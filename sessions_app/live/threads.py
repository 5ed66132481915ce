"""Database work for sockets: on a few threads of their own, so that nothing else has to wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

from django.db import connections

P = ParamSpec("P")
T = TypeVar("T")

_threads: Final = ThreadPoolExecutor(max_workers=4, thread_name_prefix="sockets")


async def in_database(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``function`` on one of the threads, with a connection that is closed when it ends."""
    call = partial(function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads, _alone, call)


def _alone(call: Callable[[], T]) -> T:
    try:
        return call()
    finally:
        connections.close_all()
