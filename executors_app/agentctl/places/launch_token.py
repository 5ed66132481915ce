"""The bearer token of one launch, which is worth nothing to the next one.

An execution keeps one secret, which is never sent. Each new agentctl process gets ``<nonce>.<HMAC of the nonce>``:
the nonce stands beside the process (its token file, the row's ``state``), so whoever has the row's secret finds the
token of a half-done launch, and of a launch that a restored database has never heard of. A process of before there
were such tokens has the secret itself.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

LAUNCH: Final = "launch"
"""Where the nonce stands in ``ExecutionFacts.state``."""
_TOKEN: Final = re.compile(r"([0-9a-f]{32})\.[0-9a-f]{64}")
_SHORTEST_SECRET: Final = 16


def mint(secret: str) -> str:
    """A token for a process that is about to be started."""
    if len(secret) < _SHORTEST_SECRET:
        return secret  # nothing good can follow from it: agentctl refuses it, and says so
    return token_of(secret, secrets.token_hex(16))


def token_of(secret: str, launch: str) -> str:
    """The token of the launch with this nonce; an empty nonce stands for the secret itself."""
    if not launch:
        return secret
    return f"{launch}.{hmac.new(secret.encode(), launch.encode(), hashlib.sha256).hexdigest()}"


def launch_of(token: str) -> str:
    """The nonce in a token; empty where it has none."""
    found = _TOKEN.fullmatch(token)
    return found[1] if found else ""


def is_of(token: str, secret: str) -> bool:
    """Whether a token is the secret itself, or follows from it."""
    follows = token_of(secret, launch_of(token))
    return bool(token) and any(hmac.compare_digest(token.encode(), one.encode()) for one in (secret, follows))


def noted(token: str) -> dict[str, str]:
    """What the row's ``state`` has to know of it."""
    launch = launch_of(token)
    return {LAUNCH: launch} if launch else {}


def bearer_of(secret: str, state: Mapping[str, Any]) -> str:
    """What the agentctl that a row knows takes as bearer."""
    launch = state.get(LAUNCH)
    return token_of(secret, launch if isinstance(launch, str) else "")
