"""Replace conversation ids, which are credentials, by fingerprints."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

MIN_TOKEN_LENGTH: Final = 6
"""A shorter id could be an ordinary word and is not redacted."""


def token_fingerprint(token: str) -> str:
    """Return 16 hexadecimal digits that identify a token without revealing it."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class TokenRedactor:
    """Replaces every known conversation id by its fingerprint."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def add_token(self, token: str | None) -> None:
        """Redact ``token`` from now on."""
        if token and len(token) >= MIN_TOKEN_LENGTH and token not in self._names:
            self._names[token] = f"[conversation {token_fingerprint(token)}]"
            self._names = dict(sorted(self._names.items(), key=lambda pair: len(pair[0]), reverse=True))

    def redact(self, value: Any) -> Any:
        """Return ``value``, any JSON, with all known ids replaced, also in keys."""
        match value:
            case str():
                for token, name in self._names.items():
                    value = value.replace(token, name)
                return value
            case Mapping():
                return {self.redact(key): self.redact(inner) for key, inner in value.items()}
            case list() | tuple():
                return [self.redact(inner) for inner in value]
        return value
