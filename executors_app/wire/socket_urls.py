"""URLs of the Unix sockets on which agentctls listen: ``unix:`` and the percent-encoded path."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

SCHEME: Final = "unix:"


def unix_url(path: Path) -> str:
    """Return the ``unix:`` URL of an absolute path."""
    return SCHEME + quote(str(path))


def unix_path(url: str) -> Path | None:
    """Return the path of a ``unix:`` URL; None for another URL. Raises ValueError if it is not absolute."""
    if not url.startswith(SCHEME):
        return None
    path = Path(unquote(url.removeprefix(SCHEME)))
    if not path.is_absolute() or not path.name or "\0" in str(path):
        raise ValueError(f"{url!r} does not name an absolute path")
    return path
