"""Merges and pushes: what is requested, and how it ends (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class FinishKind(StrEnum):
    """What is done with a session's branch."""

    MERGE = "merge"
    """It is brought into its base, in the team's repository."""
    PUSH = "push"
    """It is sent to the repository's own remote."""


class Strategy(StrEnum):
    """How a branch is brought into its base."""

    MERGE = "merge"
    SQUASH = "squash"
    REBASE = "rebase"


class FinishState(StrEnum):
    """How far an intent is."""

    REQUESTED = "requested"
    """Nothing has happened outside."""
    APPLYING = "applying"
    """Its result is known, and may be in place already: whoever continues looks first."""
    DONE = "done"
    REFUSED = "refused"
    """Nothing has changed outside, and nothing is tried again."""
    UNKNOWN = "unknown"
    """Nothing is tried again, and it could not be found out whether it has happened."""


OPEN_STATES: Final = (FinishState.REQUESTED, FinishState.APPLYING)
ONCE_STATES: Final = (*OPEN_STATES, FinishState.DONE)
"""States in which the same intent is not added again."""
FAILED_STATES: Final = (FinishState.REFUSED, FinishState.UNKNOWN)
"""States of intents that have ended without success, or may have."""

MAX_ATTEMPTS: Final = 8
"""How often an intent is tried before it is given up; the pauses between them take about 20 seconds."""
MESSAGE_LIMIT: Final = 20_000
"""Characters of a commit's message."""
MAX_CONFLICTS: Final = 100
"""Files in conflict that are stored and listed."""


class Refusal(Exception):
    """An intent cannot be carried out as it was confirmed. Nothing was changed."""

    def __init__(self, code: str, message: str, conflicts: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.conflicts = conflicts
        """Files in conflict, as text."""


class OutcomeUnknown(Exception):
    """Nobody can find out whether an intent has happened, so it is not tried again."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


KIND_NOUNS: Final[Mapping[str, str]] = {FinishKind.MERGE: "merge", FinishKind.PUSH: "push"}


def branch_name(ref: str) -> str:
    """Return the short name of a branch's ref, for people."""
    return ref.removeprefix("refs/heads/")
