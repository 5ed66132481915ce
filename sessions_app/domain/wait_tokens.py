"""The single-use key of a wait: its secret, what it opens, and in what state it is (design 10). Pure.

A secret is an HMAC of the row's id under the server's key, so that an authorised page can show it
again while the database holds no more than its hash.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

KEY_PREFIX: Final = "kwt_"
"""By which a key is known where it should not be: in a log, a commit, a screenshot."""
_PURPOSE: Final = b"kandev resume tokens, v1"


class WaitKind(StrEnum):
    """What a run waits for."""

    PERMISSION = "permission"
    TOOL_RESULT = "tool_result"
    EXTERNAL = "external"


class TokenState(StrEnum):
    """Whether a key opens anything; only ``active`` does."""

    ACTIVE = "active"
    CONSUMED = "consumed"
    REVOKED = "revoked"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """What a row says of its key."""

    consumed_at: datetime | None = None
    revoked_at: datetime | None = None
    expired_at: datetime | None = None
    """When the sweep found it too old, and said so."""
    expires_at: datetime | None = None
    """None: as long as it is waited for."""


@dataclass(frozen=True, slots=True)
class TokenScope:
    """The one wait that a key is good for."""

    session_id: str
    run_id: str | None
    wait_kind: str
    wait_id: str


def token_state(facts: TokenFacts, now: datetime) -> TokenState:
    """The first thing that happened to a key stands; its time passes even where no sweep has seen it yet."""
    if facts.consumed_at is not None:
        return TokenState.CONSUMED
    if facts.revoked_at is not None:
        return TokenState.REVOKED
    too_old = facts.expires_at is not None and facts.expires_at <= now
    return TokenState.EXPIRED if too_old or facts.expired_at is not None else TokenState.ACTIVE


_BEST_FIRST: Final = (TokenState.ACTIVE, TokenState.CONSUMED, TokenState.EXPIRED, TokenState.REVOKED)


def most_usable_state(states: Iterable[TokenState]) -> TokenState | None:
    """Of the keys of one wait, which rotation may have made many: the one that still opens most; None without any."""
    return min(states, key=_BEST_FIRST.index, default=None)


def derive_secret(token_id: str, key: str) -> str:
    """The secret of a row: 256 bits that follow from its id and the server's key."""
    derived = hmac.digest(key.encode(), _PURPOSE, "sha256")
    return KEY_PREFIX + base64.urlsafe_b64encode(hmac.digest(derived, token_id.encode(), "sha256")).decode().rstrip("=")


def secret_digest(secret: str) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def recover_secret(token_id: str, secret_hash: str, keys: Iterable[str]) -> str | None:
    """The secret of a row, by whichever of the server's keys made it; None where that key is gone."""
    candidates = (derive_secret(token_id, key) for key in keys)
    return next((secret for secret in candidates if hmac.compare_digest(secret_digest(secret), secret_hash)), None)
