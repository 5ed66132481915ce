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
NAMES: Final = (OWNER, CAUSE, "session_id", "task_id", "execution_id", "sweep_id", "intent_id")
"""What can be known; ``owner`` is the boot id of a supervisor, ``cause`` a few words."""
Known = Mapping[str, str]
_NOTHING: Final[Known] = MappingProxyType({})
_known: Final[ContextVar[Known]] = ContextVar("acting", default=_NOTHING)


def known() -> Known:
    """What is known here."""
    return _known.get()


@contextmanager
def acting(**more: object) -> Iterator[None]:
    """Within the block this is known, too; what it starts inherits it."""
    with exactly({**_known.get(), **{name: str(value) for name, value in more.items()}}):
        yield


@contextmanager
def exactly(all_of_it: Known) -> Iterator[None]:
    """Within the block this is known and nothing else: for another thread."""
    before = _known.set(all_of_it)
    try:
        yield
    finally:
        _known.reset(before)


def begin(**more: object) -> None:
    """From here on, to the end of this task: the same owner acts, and nothing else is known but this."""
    owner = {name: value for name, value in _known.get().items() if name == OWNER}
    _known.set({**owner, **{name: str(value) for name, value in more.items()}})
