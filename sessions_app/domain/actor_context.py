"""Who acts now, why, and on what: what every event and every line of the log that comes of it tells.

A supervisor says once who it is; each of its jobs says why it acts, each sweep and each start which one it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

OWNER, CAUSE = "owner", "cause"
CONTEXT_NAMES: Final = (OWNER, CAUSE, "session_id", "task_id", "execution_id", "sweep_id", "intent_id")
"""What can be known; ``owner`` is the boot id of a supervisor, ``cause`` a few words."""
ActorContext = Mapping[str, str]
_EMPTY: Final[ActorContext] = MappingProxyType({})
_context: Final[ContextVar[ActorContext]] = ContextVar("acting", default=_EMPTY)


def current_context() -> ActorContext:
    """What is known here."""
    return _context.get()


@contextmanager
def acting_as(**more: object) -> Iterator[None]:
    """Within the block this is known, too; what it starts inherits it."""
    with acting_exactly_as({**_context.get(), **{name: str(value) for name, value in more.items()}}):
        yield


@contextmanager
def acting_exactly_as(all_of_it: ActorContext) -> Iterator[None]:
    """Within the block this is known and nothing else: for another thread."""
    before = _context.set(all_of_it)
    try:
        yield
    finally:
        _context.reset(before)


def begin_context(**more: object) -> None:
    """From here on, to the end of this task: the same owner acts, and nothing else is known but this."""
    owner = {name: value for name, value in _context.get().items() if name == OWNER}
    _context.set({**owner, **{name: str(value) for name, value in more.items()}})
