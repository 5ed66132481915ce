"""A terminal that gets only the end of the output is in the modes that the beginning has set."""

from __future__ import annotations

import pytest

from executors_app.agentctl.workspace.scrollback import Scrollback
from executors_app.agentctl.workspace.terminal_modes import TerminalModes


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (b"plain \x1b[31mred\x1b[0m", b""),
        (b"\x1b[?1049h", b"\x1b[?1049h"),
        (b"\x1b[?25l\x1b[?1049h", b"\x1b[?1049h\x1b[?25l"),
        (b"\x1b[?1049h...\x1b[?1049l", b""),
        (b"\x1b[?2004h\x1b[?1;1006h", b"\x1b[?1h\x1b[?1006h\x1b[?2004h"),
        (b"\x1b[?7l\x1b[?7h\x1b[?25l", b"\x1b[?25l"),
        (b"\x1b[?9999h\x1b[?h", b""),
        (b"\x1b=\x1b[2;20r", b"\x1b=\x1b[2;20r"),
        (b"\x1b=\x1b>\x1b[2;20r\x1b[r", b""),
        (b"\x1b[?1049h\x1b[?25l\x1b=\x1bc", b""),
        (b"\x1b[?25l\x1b[!p", b""),
        (b"\x1b[?1049h\x1b[?1000h\x1b[?2004h\x1b[!p", b"\x1b[?1049h\x1b[?1000h"),
    ],
)
def test_modes_are_followed_in_pieces_of_any_size(output: bytes, expected: bytes) -> None:
    for size in range(1, len(output) + 1):
        modes = TerminalModes()
        for start in range(0, len(output), size):
            modes.follow(output[start : start + size])
        assert modes.restoring_sequences() == expected, size


def test_modes_of_dropped_output_precede_a_replay() -> None:
    scrollback = Scrollback(limit=20)
    for chunk in (b"\x1b[?1049h\x1b[?2", b"5lfirst line\r\n", b"\x1b[?2004hsecond\r\n", b"third line\r\n"):
        scrollback.append(chunk)
    start = scrollback.replay_start()
    assert scrollback.read(start, 100) == b"third line\r\n"
    assert scrollback.modes_before(start).restoring_sequences() == b"\x1b[?1049h\x1b[?25l\x1b[?2004h"
