"""Call functions and load texts in a few threads, in which teams take turns."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from sessions_app.confined.admission import Admission
from sessions_app.workflows.language import sandbox

_P = ParamSpec("_P")
_T = TypeVar("_T")
_MOST_CALLS: Final = 8
_MOST_CALLS_PER_TEAM: Final = 4
_RESERVED_CALLS: Final = 3
"""Calls that are kept for teams without one: however long those of two or three teams take, others begin at once."""
_SANDBOX_THREADS: Final = ThreadPoolExecutor(_MOST_CALLS, thread_name_prefix="sandbox")
"""What users wrote decides how long a call takes: it must not take the threads that the whole supervisor works in."""
_turns: Final = Admission(
    running=_MOST_CALLS,
    running_per_owner=_MOST_CALLS_PER_TEAM,
    waiting_per_owner=None,
    reserved=_RESERVED_CALLS,
)
"""Teams take turns, so that the functions of some delay those of another by one call at most."""


async def in_sandbox_thread(team_id: int, function: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
    """Call a function that waits for the sandbox, or for a text to be loaded, in one of a few threads.

    A team has a limited number of calls at once; more of them wait, and teams that wait take turns.
    """
    call = partial(contextvars.copy_context().run, partial(function, *arguments, **options))
    ticket = _turns.enter(str(team_id))
    try:
        await asyncio.wrap_future(ticket.admitted)
        running = _SANDBOX_THREADS.submit(call)
    except BaseException:
        _turns.leave(ticket)
        raise
    # If this coroutine is cancelled, the thread continues, and keeps the turn until it has ended.
    running.add_done_callback(lambda _: _turns.leave(ticket))
    return await asyncio.wrap_future(running)


async def call_function(team_id: int, request: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function in the sandbox process. It has no side effects, so a second call after a crash does no harm."""
    call = {name: request[name] for name in ("operation", "code", "inputs")}
    try:
        (value,) = await in_sandbox_thread(team_id, sandbox.run_in_sandbox, [call])
        return {"value": value}
    except sandbox.SandboxError as error:
        return {"error": str(error)}
