"""Single-use keys that end a wait: their secrets, scopes and states, as pure functions.

The secret is an HMAC of the row's id under the server's key. An authorized page can therefore show it again, although
the database stores only its hash.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

KEY_PREFIX: Final = "kwt_"
"""Prefix by which secret scanners and people recognize a key in a log, a commit or a screenshot."""
_PURPOSE: Final = b"kandev resume tokens, v1"


class WaitKind(StrEnum):
    """Kinds of wait."""

    PERMISSION = "permission"
    TOOL_RESULT = "tool_result"
    EXTERNAL = "external"


REQUESTED_KINDS: Final[Mapping[str, str]] = {
    WaitKind.EXTERNAL: "an external result",
    WaitKind.TOOL_RESULT: "the result of a tool",
}
"""What a wait is for, by the kinds that members can request; only agents ask for a permission."""


class WaitKeyState(StrEnum):
    """State of a key; only an ``active`` one can be used."""

    ACTIVE = "active"
    CONSUMED = "consumed"
    REVOKED = "revoked"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class WaitKeyFacts:
    """Timestamps of a key's row."""

    consumed_at: datetime | None = None
    revoked_at: datetime | None = None
    expired_at: datetime | None = None
    """When the sweep recorded that it has expired."""
    expires_at: datetime | None = None
    """None: valid as long as the wait lasts."""


@dataclass(frozen=True, slots=True)
class WaitKeyScope:
    """The one wait that a key can end."""

    session_id: str
    run_id: str | None
    wait_kind: str
    wait_id: str


def wait_key_state(facts: WaitKeyFacts, now: datetime) -> WaitKeyState:
    """Return the state of a key at ``now``; consumption and revocation take precedence over expiry.

    A key expires on time even if no sweep has recorded it yet.
    """
    if facts.consumed_at is not None:
        return WaitKeyState.CONSUMED
    if facts.revoked_at is not None:
        return WaitKeyState.REVOKED
    too_old = facts.expires_at is not None and facts.expires_at <= now
    if too_old or facts.expired_at is not None:
        return WaitKeyState.EXPIRED
    return WaitKeyState.ACTIVE


_BEST_FIRST: Final = (WaitKeyState.ACTIVE, WaitKeyState.CONSUMED, WaitKeyState.EXPIRED, WaitKeyState.REVOKED)


def most_usable_state(states: Iterable[WaitKeyState]) -> WaitKeyState | None:
    """Return the most usable of the states of one wait's keys; None without keys. Rotation gives a wait several."""
    return min(states, key=_BEST_FIRST.index, default=None)


def derive_secret(key_id: str, server_key: str) -> str:
    """Return the secret of a row: 256 bits derived from its id and the server's key."""
    derived = hmac.digest(server_key.encode(), _PURPOSE, "sha256")
    secret = hmac.digest(derived, key_id.encode(), "sha256")
    return KEY_PREFIX + base64.urlsafe_b64encode(secret).decode().rstrip("=")


def secret_digest(secret: str) -> str:
    """Return the digest that is stored of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def recover_secret(key_id: str, secret_hash: str, server_keys: Iterable[str]) -> str | None:
    """Return the secret of a row, derived from whichever of the ``server_keys`` made it; None if that one is gone."""
    for server_key in server_keys:
        secret = derive_secret(key_id, server_key)
        if hmac.compare_digest(secret_digest(secret), secret_hash):
            return secret
    return None
