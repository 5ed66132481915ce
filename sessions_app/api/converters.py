"""The converter of names in URLs of the API."""

from __future__ import annotations


class NameConverter:
    """An id chosen by a client or agentctl: 1 to 128 characters, including slashes, without control characters."""

    regex = r"[^\x00-\x1f]{1,128}"

    def to_python(self, value: str) -> str:
        """Return the name."""
        return value

    def to_url(self, value: str) -> str:
        """Return the name."""
        return value
