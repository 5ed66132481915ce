"""What a host that people have taken out of service still does (pure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Orders:
    """What people have decided about a host."""

    cordoned: bool = False
    draining: bool = False
    lost: bool = False


def takes_start(orders: Orders, *, is_new: bool) -> bool:
    """Whether the host carries out a start. ``is_new``: nothing of the session has ever been launched anywhere.

    A cordoned host resumes what runs there. A draining one starts nothing. A host that was declared lost starts nothing
    before it has ended what it may still run.
    """
    if orders.lost or orders.draining:
        return False
    return not (orders.cordoned and is_new)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the rows say about a session that still runs on a host."""

    is_unreachable: bool = False
    is_starting: bool = False
    is_stopping: bool = False
    has_turn: bool = False
    has_request: bool = False
    """Its agent asks for a permission or an answer."""
    has_background: bool = False


_WHY: Final[Sequence[tuple[Callable[[RunFacts], bool], str]]] = (
    (lambda f: f.is_unreachable, "Its agentctl does not answer, so it is unknown whether it runs."),
    (lambda f: f.is_stopping, "It is being stopped."),
    (lambda f: f.is_starting, "It is starting."),
    (lambda f: f.has_request, "Its agent waits for an answer. Answer the request, or stop the session."),
    (lambda f: f.has_turn, "A turn is running."),
    (lambda f: f.has_background, "Processes that its agent has started are running."),
)
"""The first that applies."""


def why_running(facts: RunFacts) -> str:
    """Return what a session that still runs waits for, as a sentence."""
    for applies, sentence in _WHY:
        if applies(facts):
            return sentence
    return "It comes to rest, unless a terminal is open there or a script is running."
