"""Text of others as people may read it: nothing in it turns the line around, hides, or speaks to a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_COLOURS: Final = re.compile(r"\x1b\[[0-9;:]*m")
"""ANSI's colours say nothing; every other sequence of a terminal is shown."""
_LINE_ENDS: Final = re.compile(r"\r\n?")
_NAMES: Final[Mapping[int, str]] = {
    0x061C: "ALM",
    0x200B: "ZWSP",
    0x200E: "LRM",
    0x200F: "RLM",
    0x202A: "LRE",
    0x202B: "RLE",
    0x202C: "PDF",
    0x202D: "LRO",
    0x202E: "RLO",
    0x2060: "WJ",
    0x2066: "LRI",
    0x2067: "RLI",
    0x2068: "FSI",
    0x2069: "PDI",
    0xFEFF: "BOM",
}
"""What turns the direction of a line, and what cannot be seen, by its usual name."""
_SHOWN: Final[dict[int, str]] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "\u2421",
    **{code: f"⟦{code:02X}⟧" for code in range(0x80, 0xA0)},
    **{code: f"⟦{name}⟧" for code, name in _NAMES.items()},
    **{code: f"⟦{code:X}⟧" for code in range(0xE0000, 0xE0080)},
}
_STRANGE: Final = re.compile(f"[{re.escape(''.join(map(chr, _SHOWN)))}]")


def visible(text: str) -> str:
    """The text with plain line ends, without colours, and with every other invisible sign shown.

    ``rm ⟦RLO⟧fdp.exe`` cannot be taken for what it is not; ordinary text comes out as it is.
    """
    if not _STRANGE.search(text):
        return text
    return _LINE_ENDS.sub("\n", _COLOURS.sub("", text)).translate(_SHOWN)
