"""Parse ids and numbers in text from outside."""

from __future__ import annotations

import uuid


def parse_uuid(text: str) -> uuid.UUID | None:
    """Return the UUID in a text; None for any other text."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def parse_number(text: str, digits: int = 18) -> int | None:
    """Return the whole number in a text of at most ``digits`` ASCII digits; None for any other text."""
    if text.isascii() and text.isdigit() and len(text) <= digits:
        return int(text)
    return None
