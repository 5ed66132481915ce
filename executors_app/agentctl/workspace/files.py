"""Files of the workspace: listed and read, never anything outside it.

A path is confined twice: its real path must lie in the workspace, and what was then opened must lie
there still, so that a link swapped in between gains nothing. All calls block.
"""

from __future__ import annotations

import base64
import codecs
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.protocol import Code
from executors_app.agentctl.refusals import Refused, invalid

CONTENT_LIMIT: Final = 1 << 20
"""Bytes of a file's content in one answer; the rest is cut, ``truncated`` says so."""
ENTRY_LIMIT: Final = 10_000
_PATH_LIMIT: Final = 4096


def list_directory(root: Path, path: str) -> dict[str, Any]:
    """``{path, entries: [{name, type, size}], truncated}``, sorted by name; Refused."""
    with _opened(root, path) as fd:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            raise invalid("this is not a directory", path=path)
        with os.scandir(fd) as scan:
            found = list(islice(scan, ENTRY_LIMIT + 1))
            entries = sorted((_entry(entry) for entry in found[:ENTRY_LIMIT]), key=lambda entry: entry["name"])
    return {"path": path, "entries": entries, "truncated": len(found) > ENTRY_LIMIT}


def read_content(root: Path, path: str) -> dict[str, Any]:
    """``{path, size, encoding: "utf-8" | "base64", content, truncated}``; Refused."""
    with _opened(root, path) as fd:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise invalid("this is not a file", path=path)
        with os.fdopen(os.dup(fd), "rb") as file:
            data = file.read(CONTENT_LIMIT + 1)
    truncated = len(data) > CONTENT_LIMIT
    encoding, content = _as_text(data[:CONTENT_LIMIT], whole=not truncated)
    size = max(about.st_size, len(data))
    return {"path": path, "size": size, "encoding": encoding, "content": content, "truncated": truncated}


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


@contextmanager
def _opened(root: Path, path: str) -> Iterator[int]:
    """A descriptor of something inside the workspace; never blocks on a pipe or device."""
    _check(path)
    try:
        real_root = root.resolve(strict=True)
        real = (real_root / path).resolve(strict=True)
        if not real.is_relative_to(real_root):
            raise invalid("this leads out of the workspace", path=path)
        fd = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Refused(Code.NOT_FOUND, "there is no such file", path=path) from error
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it cannot be opened"
        raise invalid(f"the file cannot be read: {reason}", path=path) from error
    try:
        if not Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(real_root):
            raise invalid("this leads out of the workspace", path=path)
        yield fd
    finally:
        os.close(fd)


def _check(path: str) -> None:
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise invalid("the path is not valid Unicode") from None
    parts = Path(path).parts
    if size > _PATH_LIMIT or "\0" in path or any(len(part.encode()) > 255 for part in parts):
        raise invalid("this cannot be a path")
    if Path(path).is_absolute() or ".." in parts:
        raise invalid("a path is relative to the workspace", path=path)
