"""The last output of a shell, from which a page that is opened later is filled."""

from __future__ import annotations

from collections import deque
from typing import Final

from executors_app.agentctl.workspace.terminal_modes import TerminalModes

SCROLLBACK_BYTES: Final = 1 << 20
"""Bytes of output that are kept per shell."""
_MAX_LINE_BYTES: Final = 4096
"""Maximum bytes that a replay skips to start at a line."""


class Scrollback:
    """The last output bytes, from offset ``start`` to ``end``; the oldest are dropped beyond ``limit``."""

    def __init__(self, limit: int = SCROLLBACK_BYTES):
        self.limit = limit
        self._chunks: deque[bytes] = deque()
        self._dropped_modes = TerminalModes()
        self.start = self.end = 0

    def append(self, data: bytes) -> None:
        """Append output."""
        self.end += len(data)
        # Small outputs are joined: an object for each byte would take forty times its size.
        if self._chunks and len(self._chunks[-1]) + len(data) <= self.limit >> 8:
            data = self._chunks.pop() + data
        self._chunks.append(data)
        while self.end - self.start - len(self._chunks[0]) >= self.limit:
            dropped = self._chunks.popleft()
            self._dropped_modes.follow(dropped)
            self.start += len(dropped)

    def read(self, position: int, most: int) -> bytes:
        """Return up to ``most`` bytes from ``position``, or from ``start`` if that was dropped."""
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

    def replay_start(self) -> int:
        """Return where a replay starts: if output was dropped, at a line, because escape sequences may be cut."""
        if self.start == 0:
            return 0
        line_end = self.read(self.start, _MAX_LINE_BYTES).find(b"\n")
        return self.start + line_end + 1

    def modes_before(self, position: int) -> TerminalModes:
        """Return the terminal's modes after all output before ``position``, which a replay is given first."""
        modes = self._dropped_modes.copy()
        modes.follow(self.read(self.start, position - self.start))
        return modes
