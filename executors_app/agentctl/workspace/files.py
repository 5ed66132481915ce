"""Files of the workspace: listed and read, never anything outside it (``paths``). All calls block."""

from __future__ import annotations

import base64
import codecs
import hashlib
import os
import stat
from itertools import islice
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.refusals import invalid
from executors_app.agentctl.workspace.paths import opened

CONTENT_LIMIT: Final = 1 << 20
"""Bytes of a file's content in one answer; the rest is cut, ``truncated`` says so."""
ENTRY_LIMIT: Final = 10_000


def list_directory(root: Path, path: str) -> dict[str, Any]:
    """``{path, entries: [{name, type, size}], truncated}``, sorted by name; Refused."""
    with opened(root, path) as fd:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            raise invalid("this is not a directory", path=path)
        with os.scandir(fd) as scan:
            found = list(islice(scan, ENTRY_LIMIT + 1))
            entries = sorted((_entry(entry) for entry in found[:ENTRY_LIMIT]), key=lambda entry: entry["name"])
    return {"path": path, "entries": entries, "truncated": len(found) > ENTRY_LIMIT}


def read_content(root: Path, path: str) -> dict[str, Any]:
    """``{path, size, encoding: "utf-8" | "base64", binary, content, truncated, hash}``; Refused.

    ``hash`` is what ``write_content`` wants to know; null where only the beginning was read.
    """
    with opened(root, path) as fd:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise invalid("this is not a file", path=path)
        with os.fdopen(os.dup(fd), "rb") as file:
            data = file.read(CONTENT_LIMIT + 1)
    truncated = len(data) > CONTENT_LIMIT
    encoding, content = _as_text(data[:CONTENT_LIMIT], whole=not truncated)
    return {
        "path": path,
        "size": max(about.st_size, len(data)),
        "encoding": encoding,
        "binary": encoding != "utf-8",
        "content": content,
        "truncated": truncated,
        "hash": None if truncated else hash_of(data),
    }


def hash_of(content: bytes) -> str:
    """By which a writer says what it has read: SHA-256."""
    return hashlib.sha256(content).hexdigest()


def _as_text(data: bytes, *, whole: bool) -> tuple[str, str]:
    if b"\0" not in data:
        try:
            # A cut may fall into a character: the decoder then keeps its pieces back.
            return "utf-8", codecs.getincrementaldecoder("utf-8")().decode(data, final=whole)
        except UnicodeDecodeError:
            pass
    return "base64", base64.b64encode(data).decode("ascii")


def _entry(entry: os.DirEntry[str]) -> dict[str, Any]:
    try:
        about = entry.stat(follow_symlinks=False)
    except OSError:
        return {"name": _shown(entry.name), "type": "other", "size": None}
    return {"name": _shown(entry.name), "type": _type(about.st_mode), "size": about.st_size}


def _type(mode: int) -> str:
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "symlink"))
    return next((name for is_kind, name in kinds if is_kind(mode)), "other")


def _shown(name: str) -> str:
    """A name that need not be UTF-8, as text that JSON can carry."""
    return os.fsencode(name).decode("utf-8", "replace")
