"""Keeps the agent's conversation ids, which are credentials, out of what is written down and told.

An agent names its conversation in error texts, on stderr and in notifications that nobody asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

SHORTEST: Final = 6
"""An id of fewer characters is a word, and stays."""


def fingerprint(token: str) -> str:
    """16 hexadecimal digits that tell two tokens apart and give neither away."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class Discretion:
    """The ids that were ever heard of here, and how each is spoken of instead."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def learn(self, token: str | None) -> None:
        """From now on ``token`` is not spoken of."""
        if token and len(token) >= SHORTEST and token not in self._names:
            self._names[token] = f"[conversation {fingerprint(token)}]"
            self._names = dict(sorted(self._names.items(), key=lambda pair: len(pair[0]), reverse=True))

    def hide(self, value: Any) -> Any:
        """``value``, any JSON, with a name in place of each id, in keys too; what holds none is returned as it is."""
        match value:
            case str():
                for token, name in self._names.items():
                    value = value.replace(token, name)
                return value
            case Mapping():
                return {self.hide(key): self.hide(inner) for key, inner in value.items()}
            case list() | tuple():
                return [self.hide(inner) for inner in value]
        return value
