"""What clients of a host send, checked: orders of instances, proofs of ownership, timeouts."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from executors_app.agentctl.http.server import parse_identifier, parse_text
from executors_app.wire.protocol import validation_error

_MIN_TOKEN_LENGTH: Final = 16
_MAX_OBSERVE_TIMEOUT: Final = 60.0

OwnershipProof = tuple[str, str]
"""Session and deployment of an instance, which prove that it belongs to the caller."""


@dataclass(frozen=True, slots=True)
class InstanceOrder:
    """The checked body of ``POST /instances``."""

    execution_id: str
    session_id: str
    task_id: str
    deployment: str
    repository: str
    base_branch: str
    token: str = field(repr=False)
    """The token for a new agentctl."""
    earlier_token: str = field(repr=False)
    """The token of the last agentctl, which may still run: it proves ownership. May be empty."""
    worktree_path: str
    worktree_branch: str
    """Path and branch as an earlier launch reported them; empty for the first launch."""


def parse_order(body: Mapping[str, Any]) -> InstanceOrder:
    """Check the body of ``POST /instances``; raises ApiError."""
    token = parse_text(body, "token")
    if len(token) < _MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise validation_error(f"token must have at least {_MIN_TOKEN_LENGTH} printable characters", field="token")
    return InstanceOrder(
        execution_id=parse_uuid(body.get("execution_id"), "execution_id"),
        session_id=parse_uuid(body.get("session_id"), "session_id"),
        task_id=parse_uuid(body.get("task_id"), "task_id"),
        deployment=parse_identifier(body, "deployment"),
        repository=parse_text(body, "repository"),
        base_branch=parse_text(body, "base_branch", ""),
        token=token,
        earlier_token=parse_text(body, "earlier_token", ""),
        worktree_path=parse_text(body, "worktree_path", ""),
        worktree_branch=parse_text(body, "worktree_branch", ""),
    )


def parse_proof(body: Mapping[str, Any]) -> OwnershipProof:
    """Check the proof of ownership in a body; raises ApiError."""
    return parse_uuid(body.get("session_id"), "session_id"), parse_identifier(body, "deployment")


def parse_uuid(value: Any, name: str) -> str:
    """Return a UUID in canonical form; raises ApiError for anything else."""
    try:
        if isinstance(value, str) and str(uuid.UUID(value)) == value:
            return value
    except ValueError:
        pass
    raise validation_error(f"{name} must be a UUID", field=name)


def parse_observe_timeout(given: str | None) -> float:
    """Return the seconds that each instance has to answer; raises ApiError."""
    try:
        seconds = float(given or 5)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _MAX_OBSERVE_TIMEOUT:
        raise validation_error(f"timeout must be a number of seconds up to {_MAX_OBSERVE_TIMEOUT:g}", field="timeout")
    return seconds
