"""Which executor of a pool a session gets, and if none, why (pure)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sessions_app.kernel.rules.wording import plural


@dataclass(frozen=True, slots=True)
class Candidate:
    """An executor of a pool, as far as placement needs it."""

    id: uuid.UUID
    name: str
    labels: frozenset[str]
    limit: int
    """How many agents may run there at once."""
    used: int
    """Agents that run or start there, or may run: what is unknown counts, too."""
    ahead: int = 0
    """Starts that have waited for a place there for longer."""
    is_attended: bool = True
    """Whether a supervisor can start sessions there."""
    is_cordoned: bool = False
    """Whether staff let no new session start on its host."""
    has_repository: bool | None = None
    """Whether its host has the repository; None: not known, or it does not matter."""

    @property
    def free(self) -> int:
        """How many places nobody has or waits for."""
        return self.limit - self.used - self.ahead


@dataclass(frozen=True, slots=True)
class Placed:
    """An executor was found."""

    executor_id: uuid.UUID
    reason: str
    """A sentence for the page."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """No executor was found."""

    cause: str
    """What is missing, as a sentence for the page; empty: only room is."""
    fits: tuple[uuid.UUID, ...] = ()
    """The executors that would do if they had room."""


Test = Callable[[Candidate], bool]


def choose_executor(
    pool: str, candidates: Collection[Candidate], wanted_labels: Collection[str], repository_path: str
) -> Placed | Waiting:
    """Return the executor with the most free places among those that fit, of equals the first by name.

    The result follows from the values alone, so that all supervisors find the same.
    """
    labels = ", ".join(sorted(wanted_labels))
    wanted = frozenset(wanted_labels)
    steps: Sequence[tuple[Test, str]] = (
        (lambda one: wanted <= one.labels, f"No executor of the pool {pool} has the labels {labels}."),
        (lambda one: one.is_attended, f"No host of the pool {pool} has a supervisor."),
        (lambda one: not one.is_cordoned, f"The hosts of the pool {pool} take no new sessions: they are cordoned."),
        (
            lambda one: one.has_repository is not False,
            f"No host of the pool {pool} has the repository {repository_path}.",
        ),
    )
    left = list(candidates)
    if not left:
        return Waiting(f"The pool {pool} has no executor that takes new sessions.")
    for test, cause in steps:
        left = [one for one in left if test(one)]
        if not left:
            return Waiting(cause)
    best = min(left, key=lambda one: (-one.free, one.name, one.id))
    if best.free <= 0:
        return Waiting("", tuple(sorted(one.id for one in left)))
    return Placed(best.id, _describe(best, wanted))


def _describe(chosen: Candidate, wanted: Collection[str]) -> str:
    """Say why it was chosen."""
    parts = [f"{chosen.used} of {plural(chosen.limit, '1 place', '{} places')} used"]
    if chosen.has_repository:
        parts.append("has the repository")
    if wanted:
        parts.append(f"has the labels {', '.join(sorted(wanted))}")
    return f"Placed on {chosen.name}: {', '.join(parts)}."


FULL: Final = "All places of the pool are used. This one starts when there is room."
