"""What a control plane sends to the host, checked: ids are UUIDs, so that no path can be made of them."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from executors_app.agentctl.bodies import identifier, text
from executors_app.agentctl.refusals import invalid

_SHORTEST_TOKEN: Final = 16
_LONGEST_LOOK: Final = 60.0


@dataclass(frozen=True, slots=True)
class Order:
    """The body of ``POST /instances``."""

    execution_id: str
    session_id: str
    task_id: str
    deployment: str
    repository: str
    base_branch: str
    token: str = field(repr=False)
    """For a new agentctl."""
    earlier_token: str = field(repr=False)
    """Of the execution's last one, which may live: the proof that the execution is the asker's. May be empty."""
    worktree_path: str
    worktree_branch: str
    """Both as an earlier launch has told them; empty at the first."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What shows that an instance is the asker's own."""

    session_id: str
    deployment: str


def order_of(body: Mapping[str, Any]) -> Order:
    """Read ``POST /instances``; raises Refused."""
    token = text(body, "token")
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise invalid(f"token must be {_SHORTEST_TOKEN} or more printable characters", field="token")
    return Order(
        execution_id=uuid_of(body.get("execution_id"), "execution_id"),
        session_id=uuid_of(body.get("session_id"), "session_id"),
        task_id=uuid_of(body.get("task_id"), "task_id"),
        deployment=identifier(body, "deployment"),
        repository=text(body, "repository"),
        base_branch=text(body, "base_branch", ""),
        token=token,
        earlier_token=text(body, "earlier_token", ""),
        worktree_path=text(body, "worktree_path", ""),
        worktree_branch=text(body, "worktree_branch", ""),
    )


def proof_of(body: Mapping[str, Any]) -> Proof:
    """Read the proof of ownership; raises Refused."""
    return Proof(uuid_of(body.get("session_id"), "session_id"), identifier(body, "deployment"))


def uuid_of(value: Any, name: str) -> str:
    """A UUID in its usual form and no other; raises Refused."""
    try:
        if isinstance(value, str) and str(uuid.UUID(value)) == value:
            return value
    except ValueError:
        pass
    raise invalid(f"{name} must be a UUID", field=name)


def look_timeout(given: str | None) -> float:
    """The seconds that one instance has to answer in; raises Refused."""
    try:
        seconds = float(given or 5)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _LONGEST_LOOK:
        raise invalid(f"timeout must be a number of seconds up to {_LONGEST_LOOK:g}", field="timeout")
    return seconds
