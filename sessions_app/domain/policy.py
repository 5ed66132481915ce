"""Which recovery policy holds for a session, and who said so: the session itself, its team, or the deployment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sessions_app.domain.recovery_facts import Policy


class Source(StrEnum):
    """Whose word counts, the nearest first."""

    SESSION = "session"
    TEAM = "team"
    DEPLOYMENT = "deployment"


@dataclass(frozen=True, slots=True)
class Said:
    """What one of them says; the empty text and None: nothing."""

    policy: str = ""
    continues: bool | None = None


@dataclass(frozen=True, slots=True)
class Effective:
    """What holds."""

    policy: str
    """A word of ``Policy``, but for a damaged row's."""
    source: Source
    continues: bool
    """Whether interrupted work is continued by itself (rule 16)."""
    continues_source: Source | None
    """None: nobody says, so it follows from the policy."""


def effective(session: Said, team: Said, deployment: Said) -> Effective:
    """The nearest word counts, for each of the two by itself; continuing is on where the policy is auto."""
    heard = ((Source.SESSION, session), (Source.TEAM, team), (Source.DEPLOYMENT, deployment))
    policy, source = next(((said.policy, who) for who, said in heard if said.policy), ("auto", Source.DEPLOYMENT))
    continues, who = next(((said.continues, who) for who, said in heard if said.continues is not None), (None, None))
    return Effective(policy, source, policy == Policy.AUTO if continues is None else continues, who)
