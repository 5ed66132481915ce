"""Whether a start is for the supervisor that asks, and if it is for none, why (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NO_SUPERVISOR: Final = (
    "The host of this executor has no supervisor. It starts when one runs there, or when staff choose another host for "
    "the executor."
)
NO_SUPERVISOR_OF_WORKTREE: Final = (
    "The host with the worktree that this session shares has no supervisor. It starts when one runs there."
)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A host that has a living supervisor."""

    host: int
    has_repository: bool | None
    """Whether its disk has the repository; None: not known."""


@dataclass(frozen=True, slots=True)
class StartFacts:
    """A start and the hosts that could carry it out, as one supervisor sees them."""

    own_host: int | None
    """The host of the supervisor that asks; None: it has not reported yet."""
    own_has_repository: bool | None
    """Whether the disk of this supervisor has the repository; None: it cannot tell."""
    executor_host: int | None
    """The only host of the executor; None: any."""
    hosts: Sequence[HostFacts]
    """The other hosts with a living supervisor."""
    repository_path: str


@dataclass(frozen=True, slots=True)
class ClaimDecision:
    """The answer to the supervisor that asks."""

    is_ours: bool
    waits_for: str = ""
    """Why no supervisor can carry the start out, as sentences for the page; empty if one can."""


OURS: Final = ClaimDecision(is_ours=True)
OF_OTHERS: Final = ClaimDecision(is_ours=False)


def decide_claim(facts: StartFacts) -> ClaimDecision:
    """Return whether the start is for the supervisor that asks.

    A repository that cannot be looked for counts as present: the start then says what is wrong with it.
    """
    others = [host for host in facts.hosts if facts.executor_host in (None, host.host)]
    may_be_ours = facts.executor_host in (None, facts.own_host)
    if not may_be_ours and not others:
        return ClaimDecision(is_ours=False, waits_for=NO_SUPERVISOR)
    if may_be_ours and facts.own_has_repository is not False:
        return OURS
    if any(host.has_repository is not False for host in others):
        return OF_OTHERS
    return ClaimDecision(is_ours=False, waits_for=describe_missing_repository(facts.repository_path))


def describe_missing_repository(path: str) -> str:
    """Say that no host has a repository, and what to do."""
    return f"No host of this executor has the repository {path}. It starts when one of them has it."
