"""Record the lines of a chatty source at a bounded rate."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

LOG_TEXT_LIMIT: Final = 2000
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
        self._allowed, self._refilled_at = float(burst), clock()
        self._left_out = self._left_out_bytes = 0
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def put(self, line: bytes, **data: Any) -> None:
        """Record a line, or count it as dropped."""
        text = line[: 4 * LOG_TEXT_LIMIT].decode("utf-8", "replace").strip()[:LOG_TEXT_LIMIT]
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
            size = f"{self._source} ({self._left_out_bytes} B)"
            text = f"{self._left_out} more lines of {size} were left out"
            if self._left_out == 1:
                text = f"1 more line of {size} was left out"
            self._left_out = self._left_out_bytes = 0
            self._record("log", level=self._level, text=text, data={"source": self._source})

    def tail(self) -> str:
        """Return the last lines, recorded or dropped."""
        return "\n".join(self._tail)

    def _take_allowance(self) -> bool:
        now = self._clock()
        self._allowed = min(self._burst, self._allowed + (now - self._refilled_at) * self._per_second)
        self._refilled_at = now
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True
