"""agentctl as it is sent into a sprite: its modules in one archive, and what it needs, pinned."""

from __future__ import annotations

import hashlib
import io
import tarfile
from functools import cache
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_BESIDE: Final = ("__init__", "crash_points", "crash_point_table", "demo_agent", "domain", "errors")
"""Modules beside ``agentctl/`` that it imports, as the container image has them, too."""


@cache
def archive() -> bytes:
    """A tar of ``executors_app/``, the same to the byte for the same files."""
    files = [_PACKAGE / f"{name}.py" for name in _BESIDE] + sorted((_PACKAGE / "agentctl").rglob("*.py"))
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as made:
        for file in files:
            entry = tarfile.TarInfo(file.relative_to(_PACKAGE.parent).as_posix())
            entry.size, entry.mode = file.stat().st_size, 0o644
            with file.open("rb") as content:
                made.addfile(entry, content)
    return into.getvalue()


@cache
def version() -> str:
    """What names this very program."""
    return hashlib.sha256(archive()).hexdigest()[:16]


def requirements() -> bytes:
    """Its packages, with their hashes."""
    return (_PACKAGE.parent / "requirements" / "agentctl.txt").read_bytes()
