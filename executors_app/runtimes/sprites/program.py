"""The program that runs in a sprite, as an archive."""

from __future__ import annotations

import hashlib
import io
import tarfile
from functools import cache
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = ("wire", "machine", "agentctl", "demo_agent")
"""What runs in the sprite; the container image contains the same."""


@cache
def program_archive() -> bytes:
    """Return a tar of ``executors_app/`` that is identical, byte for byte, for identical files."""
    files = [_PACKAGE / "__init__.py"]
    for package in _PACKAGES:
        files += sorted((_PACKAGE / package).rglob("*.py"))
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as made:
        for file in files:
            entry = tarfile.TarInfo(file.relative_to(_PACKAGE.parent).as_posix())
            entry.size, entry.mode = file.stat().st_size, 0o644
            with file.open("rb") as content:
                made.addfile(entry, content)
    return into.getvalue()


@cache
def program_version() -> str:
    """Return a hash that identifies exactly this program."""
    return hashlib.sha256(program_archive()).hexdigest()[:16]


def program_requirements() -> bytes:
    """Return the program's pinned packages with their hashes."""
    return (_PACKAGE.parent / "requirements" / "agentctl.txt").read_bytes()
