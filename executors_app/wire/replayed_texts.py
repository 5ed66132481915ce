"""Compare the texts that an agent replays with those that it was given."""

from __future__ import annotations

import hashlib
from typing import Final

from executors_app.wire.normalization import normalize_compatible

MAX_TEXTS: Final = 20
"""Number of user texts that are kept of a replay: the last ones."""
MAX_DIGESTS: Final = 5000
"""Number of user texts of a replay of which a digest is kept: the last ones."""
_COMPARED_CHARS: Final = 200
"""How much of a prompt is compared: agents replay long texts cut."""
_MIN_QUOTE: Final = 64
"""A shorter replayed text proves nothing by being part of a prompt."""

_ANY_TEXT: Final = 24
"""A shorter text may occur in any other one by chance."""


def shows_text(replayed_text: str, text: str) -> bool:
    """Return whether a replayed user text, possibly wrapped or cut, is ``text``."""
    return find_text(normalise_text(replayed_text), normalise_text(text)) is not None


def proves_receipt(replayed_text: str, text: str) -> bool:
    """Return whether a replayed user text proves that the agent has received the prompt ``text``.

    A short one has to be the whole text or its last lines: words like *continue* also occur in other requests, and in
    the context that is sent before a prompt.
    """
    ours = normalise_text(text)
    if len(ours) >= _ANY_TEXT:
        return shows_text(replayed_text, text)
    last_lines = replayed_text.strip().splitlines()[-len(text.strip().splitlines()) :]
    return ours in (normalise_text(replayed_text), normalise_text("\n".join(last_lines)))


def find_text(seen: str, ours: str) -> int | None:
    """Return where a replayed text shows ours, both normalised; 0 for one that was cut, None if it does not."""
    place = seen.rfind(ours[:_COMPARED_CHARS])
    if place >= 0:
        return place
    if len(seen) >= _MIN_QUOTE and seen in ours:
        return 0
    return None


def normalise_text(text: str) -> str:
    """Return a text without differences that agents make: case, white space, compatible characters."""
    return " ".join(normalize_compatible(text).casefold().split())


def text_digest(text: str) -> str:
    """Return a digest of the whole text without these differences: 32 hex digits."""
    return hashlib.sha256(normalise_text(text).encode("utf-8", "surrogatepass")).hexdigest()[:32]
