"""List directories and read files of the workspace. All calls block."""

from __future__ import annotations

import os
import stat
from itertools import islice
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.workspace.paths import open_path
from executors_app.wire.file_content import describe_content
from executors_app.wire.protocol import validation_error

CONTENT_LIMIT: Final = 1 << 20
"""Bytes of a file's content in one answer; ``truncated`` reports whether there is more."""
ENTRY_LIMIT: Final = 10_000


def list_directory(root: Path, path: str) -> dict[str, Any]:
    """Return ``{path, entries: [{name, type, size}], truncated}``, sorted by name; raises ApiError."""
    with open_path(root, path) as fd:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            raise validation_error("this is not a directory", path=path)
        with os.scandir(fd) as scan:
            found = list(islice(scan, ENTRY_LIMIT + 1))
            entries = sorted(
                (_directory_entry(entry) for entry in found[:ENTRY_LIMIT]), key=lambda entry: entry["name"]
            )
    return {"path": path, "entries": entries, "truncated": len(found) > ENTRY_LIMIT}


def read_content(root: Path, path: str) -> dict[str, Any]:
    """Return ``{path, size, encoding: "utf-8" | "base64", binary, content, truncated, hash}``; raises ApiError.

    ``hash`` is the ``expected`` of ``write_content``; null if only the beginning was read.
    """
    with open_path(root, path) as fd:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise validation_error("this is not a file", path=path)
        with os.fdopen(os.dup(fd), "rb") as file:
            data = file.read(CONTENT_LIMIT + 1)
    return describe_content(path, max(about.st_size, len(data)), data[:CONTENT_LIMIT], len(data) > CONTENT_LIMIT)


def _directory_entry(entry: os.DirEntry[str]) -> dict[str, Any]:
    try:
        about = entry.stat(follow_symlinks=False)
    except OSError:
        return {"name": _display_name(entry.name), "type": "other", "size": None}
    return {"name": _display_name(entry.name), "type": _entry_type(about.st_mode), "size": about.st_size}


def _entry_type(mode: int) -> str:
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "symlink"))
    return next((name for is_kind, name in kinds if is_kind(mode)), "other")


def _display_name(name: str) -> str:
    """Return a file name, which may not be UTF-8, as text for JSON."""
    return os.fsencode(name).decode("utf-8", "replace")
