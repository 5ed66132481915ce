"""Tokens of launches: each agentctl has one of its own, derived from the execution's secret and a nonce."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

LAUNCH_KEY: Final = "launch"
"""Key of the nonce in ``ExecutionFacts.state``."""
_TOKEN: Final = re.compile(r"([0-9a-f]{32})\.[0-9a-f]{64}")
_MIN_SECRET_LENGTH: Final = 16


def mint_launch_token(secret: str) -> str:
    """Return a token for a process that is about to start."""
    if len(secret) < _MIN_SECRET_LENGTH:
        return secret  # agentctl rejects a token this short, with a reason
    return derive_launch_token(secret, secrets.token_hex(16))


def derive_launch_token(secret: str, launch: str) -> str:
    """Derive the token of a launch from its nonce; an empty nonce means the secret itself."""
    if not launch:
        return secret
    return f"{launch}.{hmac.new(secret.encode(), launch.encode(), hashlib.sha256).hexdigest()}"


def launch_nonce(token: str) -> str:
    """Return the nonce in a token; empty if it has none."""
    found = _TOKEN.fullmatch(token)
    if found:
        return found[1]
    return ""


def is_token_of(token: str, secret: str) -> bool:
    """Whether a token is the secret itself or derived from it."""
    follows = derive_launch_token(secret, launch_nonce(token))
    return bool(token) and any(
        hmac.compare_digest(token.encode(), candidate.encode()) for candidate in (secret, follows)
    )


def token_state(token: str) -> dict[str, str]:
    """Return what the row's ``state`` must record of a token: its nonce."""
    launch = launch_nonce(token)
    if launch:
        return {LAUNCH_KEY: launch}
    return {}


def bearer_token(secret: str, state: Mapping[str, Any]) -> str:
    """Return the bearer token of the agentctl that a row describes."""
    launch = state.get(LAUNCH_KEY)
    if not isinstance(launch, str):
        launch = ""
    return derive_launch_token(secret, launch)
