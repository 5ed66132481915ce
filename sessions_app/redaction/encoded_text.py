"""Read text through escapes and encodings: a secret stays one in JSON, in an address, in HTML and in Base64."""

from __future__ import annotations

import base64
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

_ESCAPE: Final = re.compile(
    r"\\++u(?P<pair>d[89ab][0-9a-f]{2}\\++ud[c-f][0-9a-f]{2})"
    r"|\\++(?:u(?P<unicode>[0-9a-f]{4})|x(?P<byte>[0-9a-f]{2})|(?P<control>[nrtbf])|)"
    r"|(?P<bytes>(?:%(?:25)*[89a-f][0-9a-f])+)"
    r"|%(?:25)*(?P<percent>[0-7][0-9a-f])"
    r"|&(?:amp;)*(?:#x(?P<hex>[0-9a-f]{1,5})|#(?P<number>[0-9]{1,6})|(?P<entity>quot|apos|lt|gt));"
    r"|(?P<ampersand>&(?:amp;)++)",
    re.IGNORECASE,
)
"""An escape of JSON and of programs, addresses or HTML, however often it was escaped again. The first alternative is a
character that JSON writes as two."""
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_ENTITIES: Final = {"quot": '"', "apos": "'", "lt": "<", "gt": ">"}
_HEXADECIMAL: Final = ("unicode", "byte", "percent", "hex")
_BACKSLASH: Final = ord("\\")
_SPACE: Final = re.compile(r"\s+")
_STANDARD_ALPHABET: Final = str.maketrans("-_", "+/")


class View:
    """A text as it reads without some of its characters or encodings, with the place of each character in the original.

    ``pieces`` are, in order, the texts that it consists of, each with its begin and end in the original.
    """

    def __init__(self, pieces: Iterable[tuple[str, int, int]]) -> None:
        self._starts: list[int] = []
        self._origins: list[tuple[int, int]] = []
        texts, length = [], 0
        for text, begin, end in pieces:
            if text:
                texts.append(text)
                self._starts.append(length)
                self._origins.append((begin, end))
                length += len(text)
        self.text: Final = "".join(texts)

    def original(self, start: int, stop: int) -> tuple[int, int]:
        """Return the part of the original that these characters, of which there is at least one, stand for."""
        return self._original(start)[0], self._original(stop - 1)[1]

    def _original(self, at: int) -> tuple[int, int]:
        number = bisect_right(self._starts, at) - 1
        begin, end = self._origins[number]
        if number + 1 < len(self._starts):
            following = self._starts[number + 1]
        else:
            following = len(self.text)
        if following - self._starts[number] != end - begin:
            return begin, end
        place = begin + at - self._starts[number]
        return place, place + 1


def has_escapes(text: str) -> bool:
    """Whether ``decoded`` may read otherwise."""
    return "\\" in text or "%" in text or "&" in text


def decoded(text: str) -> View:
    """Return a text without escapes, and without backslashes, whose number tells nothing if it was escaped often."""
    return View(_without_escapes(text))


def _without_escapes(text: str) -> Iterator[tuple[str, int, int]]:
    end = 0
    for escape in _ESCAPE.finditer(text):
        yield text[end : escape.start()], end, escape.start()
        end = escape.end()
        yield _unescape(escape), escape.start(), end
    yield text[end:], end, len(text)


def _unescape(escape: re.Match[str]) -> str:
    kind = escape.lastgroup
    if kind is None:  # only backslashes
        return ""
    value = escape[kind].lower()
    if kind in _SPECIAL:
        return _SPECIAL[kind](value)
    base = 16 if kind in _HEXADECIMAL else 10
    code = int(value, base)
    if code == _BACKSLASH or code > sys.maxunicode:
        return ""
    return chr(code)


def _decode_octets(value: str) -> str:
    octets = bytes(int(each[-2:], 16) for each in value.split("%")[1:])
    return octets.decode("utf-8", "replace")


def _decode_pair(value: str) -> str:
    return bytes.fromhex(value[:4] + value[-4:]).decode("utf-16-be")


_SPECIAL: Final[Mapping[str, Callable[[str], str]]] = {
    "pair": _decode_pair,
    "bytes": _decode_octets,
    "control": _CONTROLS.__getitem__,
    "entity": _ENTITIES.__getitem__,
    "ampersand": lambda value: "&",
}
"""How the groups of ``_ESCAPE`` are read that contain no number of a character."""


def base64_view(text: str) -> View:
    """Return a text without spaces and line ends, which may be anywhere in Base64, in the standard alphabet."""
    return View(_without_spaces(text))


def _without_spaces(text: str) -> Iterator[tuple[str, int, int]]:
    end = 0
    text = text.translate(_STANDARD_ALPHABET)
    for space in _SPACE.finditer(text):
        yield text[end : space.start()], end, space.start()
        end = space.end()
    yield text[end:], end, len(text)


def in_base64(value: str) -> Iterator[str]:
    """Yield the three forms that a value has in Base64, whatever precedes and follows it.

    Three bytes are four characters, so the form depends on the number of bytes before the value. Characters that also
    encode a neighbour are left out.
    """
    octets = value.encode("utf-8", "replace")
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + octets).decode("ascii")
        yield encoded[-(-before * 8 // 6) : (before + len(octets)) * 8 // 6]
