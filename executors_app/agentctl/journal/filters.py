"""Filters for journal lines: redaction of conversation ids, and a rate limit for log lines of noisy sources."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Mapping
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


TEXT_LIMIT: Final = 2000
"""Characters of a line that are recorded."""
_TAIL_LINES: Final = 20


class RateLimitedLog:
    """Records lines of one source as ``log`` lines at a bounded rate, and counts those it drops (token bucket)."""

    def __init__(
        self,
        record: Callable[..., Any],
        source: str,
        *,
        level: str = "info",
        burst: int = 20,
        per_second: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._record, self._source, self._level = record, source, level
        self._burst, self._per_second, self._clock = burst, per_second, clock
        self._allowed, self._asked_at = float(burst), clock()
        self._left_out = self._left_out_bytes = 0
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def put(self, line: bytes, **data: Any) -> None:
        """Record a line, or count it as dropped."""
        text = line[: 4 * TEXT_LIMIT].decode("utf-8", "replace").strip()[:TEXT_LIMIT]
        if not text:
            return
        self._tail.append(text)
        if self._take_allowance():
            self.flush()
            self._record("log", level=self._level, text=text, data={"source": self._source, **data})
        else:
            self._left_out += 1
            self._left_out_bytes += len(line)

    def flush(self) -> None:
        """Record how many lines were dropped, if any."""
        if self._left_out:
            text = f"{self._left_out} more lines of {self._source} ({self._left_out_bytes} bytes) were left out"
            self._left_out = self._left_out_bytes = 0
            self._record("log", level=self._level, text=text, data={"source": self._source})

    def tail(self) -> str:
        """Return the last lines, recorded or dropped."""
        return "\n".join(self._tail)

    def _take_allowance(self) -> bool:
        now = self._clock()
        self._allowed = min(self._burst, self._allowed + (now - self._asked_at) * self._per_second)
        self._asked_at = now
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True
