"""The derived status of a session: what follows from its newest run, and is never stored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sessions_app.domain.states import OPEN_RUN_STATES, RunState
from sessions_app.domain.wait_tokens import TokenState


class DerivedStatus(StrEnum):
    """In the order in which they are decided: the first that holds."""

    INTERRUPTED_STARTUP = "interrupted_startup"
    INTERRUPTED_WAITING = "interrupted_waiting"
    WAITING = "waiting"
    RUNNING = "running"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The newest run of a session; a newer one ends what an older one says."""

    state: RunState
    waited: bool = False
    """It waits, or was waiting when it ended."""
    process_gone: bool = False
    """The agent process that owns it is gone; never so for a wait for an external result, which no process owns."""
    token: TokenState | None = TokenState.ACTIVE
    """The best key of its wait; None: there is none. A consumed one is an answer that is on its way."""


_OPENS_OR_OPENED = frozenset({TokenState.ACTIVE, TokenState.CONSUMED})


def derive_status(run: RunFacts | None) -> DerivedStatus:
    """The status that follows from the newest run; ``idle`` without one."""
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
