"""The last output of a shell, by its place in all that the shell ever said; no I/O."""

from __future__ import annotations

from collections import deque
from typing import Final

SCROLLBACK: Final = 1 << 20
"""Bytes that are kept."""
_LINE: Final = 4096
"""How far a replay looks for a line to begin with."""


class Scrollback:
    """Bytes from ``start`` to ``end``; the oldest go when there are more than ``limit``."""

    def __init__(self, limit: int = SCROLLBACK):
        self.limit = limit
        self._chunks: deque[bytes] = deque()
        self.start = self.end = 0

    def append(self, data: bytes) -> None:
        """Take output in."""
        self._chunks.append(data)
        self.end += len(data)
        while self.end - self.start - len(self._chunks[0]) >= self.limit:
            self.start += len(self._chunks.popleft())

    def read(self, position: int, most: int) -> bytes:
        """Up to ``most`` bytes from ``position`` on, or from ``start`` where that has gone."""
        skip, found, size = max(0, position - self.start), [], 0
        for chunk in self._chunks:
            if skip >= len(chunk):
                skip -= len(chunk)
                continue
            piece = chunk[skip : skip + most - size]
            skip, size = 0, size + len(piece)
            found.append(piece)
            if size >= most:
                break
        return b"".join(found)

    def beginning(self) -> int:
        """Where a replay begins: at a line, if the oldest output has gone, lest it begins within an escape sequence."""
        if self.start == 0:
            return 0
        line_end = self.read(self.start, _LINE).find(b"\n")
        return self.start + line_end + 1
