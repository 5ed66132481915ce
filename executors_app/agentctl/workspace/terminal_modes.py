"""Follow the modes that a program has set in a terminal, so that a terminal without its whole output can be in them.

A scrollback keeps only the end of the output. What was dropped may have switched to the alternate screen, hidden the
cursor or asked for pasted text in brackets; a terminal that gets only the rest would not know.
"""

from __future__ import annotations

import re
from typing import Final

ALTERNATE_SCREENS: Final = frozenset({47, 1047, 1049})
_DEFAULTS: Final[dict[int, bool]] = {
    **dict.fromkeys((1, 5, 6, 45, 66, 1004, 1005, 1006, 1015, 1016, 2004), False),
    **dict.fromkeys((9, 1000, 1001, 1002, 1003), False),  # what the mouse reports
    **dict.fromkeys(ALTERNATE_SCREENS, False),
    **dict.fromkeys((7, 25), True),  # lines wrap, and the cursor is visible
}
"""The private modes of xterm that change the display or the keyboard, with their values after a reset."""
_KEPT_BY_SOFT_RESET: Final = ALTERNATE_SCREENS | {9, 1000, 1001, 1002, 1003, 1005, 1006, 1015, 1016}
"""What a soft reset (``CSI ! p``) leaves as it is: the screen and what the mouse reports."""
_VERBS: Final = {True: b"h", False: b"l"}
_LONGEST_SEQUENCE: Final = 64
"""Bytes; a longer one sets no mode that is followed here."""
_SEQUENCE: Final = re.compile(
    rb"\x1b(?:\[\?(?P<modes>[0-9;]{1,60})(?P<verb>[hl])|\[(?P<region>[0-9;]{0,20})r|(?P<keypad>[=>])|(?P<reset>c|\[!p))"
)


class TerminalModes:
    """The modes of a terminal after the output that was given to ``follow``."""

    def __init__(self) -> None:
        self._modes: dict[int, bool] = {}
        self._application_keypad = False
        self._scroll_region = b""
        self._rest = b""
        """The end of the last output, which may be the beginning of a sequence."""

    @property
    def on_alternate_screen(self) -> bool:
        """Whether a full-screen program has the screen."""
        return any(self._modes.get(mode, False) for mode in ALTERNATE_SCREENS)

    def follow(self, output: bytes) -> None:
        """Follow more output, in any pieces."""
        output = self._rest + output
        for sequence in _SEQUENCE.finditer(output):
            self._apply(sequence)
        start = output.rfind(b"\x1b", -_LONGEST_SEQUENCE)
        is_whole = start < 0 or _SEQUENCE.match(output, start) is not None
        self._rest = b""
        if not is_whole:
            self._rest = output[start:]

    def _apply(self, sequence: re.Match[bytes]) -> None:
        if sequence["reset"]:
            kept: frozenset[int] = frozenset()
            if sequence["reset"] != b"c":
                kept = _KEPT_BY_SOFT_RESET
            self._modes = {mode: is_set for mode, is_set in self._modes.items() if mode in kept}
            self._application_keypad = False
            self._scroll_region = b""
        elif sequence["keypad"]:
            self._application_keypad = sequence["keypad"] == b"="
        elif sequence["region"] is not None:
            self._scroll_region = sequence["region"]
        else:
            for number in sequence["modes"].split(b";"):
                mode = int(number or b"0")
                if mode in _DEFAULTS:
                    self._modes[mode] = sequence["verb"] == b"h"

    def copy(self) -> TerminalModes:
        """Return modes that follow other output from here."""
        other = TerminalModes()
        other._modes = dict(self._modes)
        other._application_keypad = self._application_keypad
        other._scroll_region = self._scroll_region
        other._rest = self._rest
        return other

    def restoring_sequences(self) -> bytes:
        """Return what brings a terminal that was reset into these modes; empty if it is in them already."""
        sequences = []
        for mode, is_set in sorted(self._modes.items(), key=_screens_first):
            if is_set != _DEFAULTS[mode]:
                sequences.append(b"\x1b[?%d%c" % (mode, _VERBS[is_set]))
        if self._application_keypad:
            sequences.append(b"\x1b=")
        if self._scroll_region:
            sequences.append(b"\x1b[%sr" % self._scroll_region)
        return b"".join(sequences)


def _screens_first(entry: tuple[int, bool]) -> tuple[bool, int]:
    """Sort the alternate screen before the modes that hold on it."""
    mode, _ = entry
    return mode not in ALTERNATE_SCREENS, mode
