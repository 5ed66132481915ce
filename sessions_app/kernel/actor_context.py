"""Context of the current actor: who acts, why and on what. Events and log lines include it.

A supervisor sets its owner once. Its jobs, sweeps and starts each add their own cause and ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

OWNER, CAUSE = "owner", "cause"
"""The boot id of a supervisor, and a few words. A context may also name a session, task, execution, sweep or intent."""
ActorContext = Mapping[str, str]
_EMPTY: Final[ActorContext] = MappingProxyType({})
_context: Final[ContextVar[ActorContext]] = ContextVar("acting", default=_EMPTY)


def current_context() -> ActorContext:
    """Return the context of the current task or thread."""
    return _context.get()


@contextmanager
def acting_as(**more: object) -> Iterator[None]:
    """Add to the context within the block; tasks that are started there inherit it."""
    with acting_exactly_as({**_context.get(), **{name: str(value) for name, value in more.items()}}):
        yield


@contextmanager
def acting_exactly_as(all_of_it: ActorContext) -> Iterator[None]:
    """Replace the context within the block, for example on another thread."""
    before = _context.set(all_of_it)
    try:
        yield
    finally:
        _context.reset(before)


def begin_context(**more: object) -> None:
    """Replace the context until the current task ends, keeping only its owner."""
    owner = {name: value for name, value in _context.get().items() if name == OWNER}
    _context.set({**owner, **{name: str(value) for name, value in more.items()}})
