"""Whose a conversation is: its token is given to no other profile, agent type or directory than it came from.

An agent that is given a stranger's token, or the right one in another directory, may load a conversation that
is not the one on the screen, or lose it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

TOKEN_OF: Final = "token_of"  # noqa: S105  (a key, no secret)
"""Key of ``TaskSession.metadata``: the belonging of ``executors_running.resume_token``."""
REJECTED_TOKEN_OF: Final = "rejected_token_of"  # noqa: S105
"""Key of the same: of ``rejected_resume_token``."""


@dataclass(frozen=True, slots=True)
class TokenBinding:
    """Where a conversation was opened."""

    agent_profile: str
    """Its id."""
    agent_type: str
    directory: str

    def to_json(self) -> dict[str, str]:
        """As the metadata keep it."""
        return asdict(self)


def mismatched_fields(kept: Any, now: TokenBinding) -> tuple[str, ...]:
    """What is another now than where the token came from: names of fields; empty where it fits or nobody knows."""
    if not isinstance(kept, Mapping):
        return ()
    return tuple(name for name, value in now.to_json().items() if value and kept.get(name, value) != value)
