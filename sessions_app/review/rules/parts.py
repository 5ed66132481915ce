"""Parts of a branch whose changes can be shown alone: a commit, a turn, or what is not committed (pure)."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_COMMIT_ID: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class PartKind(StrEnum):
    """What is shown."""

    BRANCH = "branch"
    UNCOMMITTED = "uncommitted"
    COMMIT = "commit"
    TURN = "turn"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a branch, or the whole of it."""

    kind: PartKind
    id: str = ""
    """Of the commit or the turn."""

    @classmethod
    def parse(cls, text: str) -> Part:
        """Return the part with this name, such as ``commit:ID``; raises ValueError."""
        name, _, found = text.partition(":")
        kind = PartKind(name or PartKind.BRANCH)
        if kind is PartKind.COMMIT and not _COMMIT_ID.fullmatch(found):
            raise ValueError("this is not the full id of a commit")
        if kind is PartKind.TURN:
            found = str(uuid.UUID(found))
        elif kind is not PartKind.COMMIT and found:
            raise ValueError(f"{kind} has no id")
        return cls(kind, found)

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}" if self.id else str(self.kind)


WHOLE_BRANCH: Final = Part(PartKind.BRANCH)
