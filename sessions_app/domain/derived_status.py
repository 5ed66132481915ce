"""Derived status of a session: it follows from the newest run and is never stored as a state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sessions_app.domain.states import OPEN_RUN_STATES, RunState
from sessions_app.domain.wait_tokens import TokenState


class DerivedStatus(StrEnum):
    """Derived statuses in order of precedence."""

    INTERRUPTED_STARTUP = "interrupted_startup"
    INTERRUPTED_WAITING = "interrupted_waiting"
    WAITING = "waiting"
    RUNNING = "running"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The newest run of a session; older runs do not matter."""

    state: RunState
    waited: bool = False
    """The run waits, or was waiting when it ended."""
    process_gone: bool = False
    """The agent process that owns the run is gone; always False for external waits, which no process owns."""
    token: TokenState | None = TokenState.ACTIVE
    """Best state among the keys of its wait; None: it has none. Consumed means that an answer is on its way."""


_OPENS_OR_OPENED = frozenset({TokenState.ACTIVE, TokenState.CONSUMED})


def derive_status(run: RunFacts | None) -> DerivedStatus:
    """Return the status that follows from the newest run; ``idle`` without one."""
    if run is None:
        return DerivedStatus.IDLE
    is_open, interrupted = run.state in OPEN_RUN_STATES, run.state == RunState.INTERRUPTED
    if (is_open and run.process_gone) or (interrupted and not run.waited):
        return DerivedStatus.INTERRUPTED_STARTUP
    if interrupted or (run.state == RunState.WAITING and run.token not in _OPENS_OR_OPENED):
        return DerivedStatus.INTERRUPTED_WAITING
    if run.state == RunState.WAITING:
        return DerivedStatus.WAITING
    return DerivedStatus.RUNNING if is_open else DerivedStatus.IDLE
