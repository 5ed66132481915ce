"""Writes a file of the workspace: only over what the writer has read, whole or not at all. Blocks."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.protocol import Code
from executors_app.agentctl.refusals import Refused, invalid
from executors_app.agentctl.workspace import paths
from executors_app.agentctl.workspace.files import hash_of

WRITE_LIMIT: Final = 4 << 20
"""Bytes of a file's content."""
ANYTHING: Final = "*"
_MAY_NOT: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG})
_NEW_MODE: Final = 0o644
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class _Before:
    """What lies at the place now: its hash, mode, and by what a change is seen."""

    content_hash: str
    mode: int
    mark: tuple[int, int, int]


def write_content(root: Path, path: str, content: bytes, expected: str | None) -> dict[str, Any]:
    """Write a file, and answer ``{path, size, hash, created}``.

    ``expected`` is the hash of what is there, ``*`` for whatever is there, None for nothing: Refused
    with *conflict* where it is otherwise. The mode stays; a link is followed where it stays inside.
    """
    if len(content) > WRITE_LIMIT:
        raise Refused(Code.TOO_LARGE, f"a file may have {WRITE_LIMIT} bytes", path=path)
    with _place(root, path) as (folder, name):
        before = _before(folder, name, path)
        _compare(before, expected, path)
        try:
            _replace(folder, name, content, before, path)
        except OSError as error:
            if error.errno not in _MAY_NOT:
                raise
            raise invalid(f"this cannot be written: {error.strerror}", path=path) from error
    return {"path": path, "size": len(content), "hash": hash_of(content), "created": before is None}


@contextmanager
def _place(root: Path, path: str) -> Iterator[tuple[int, str]]:
    """The directory, opened, in which the file lies or would lie, and its name there."""
    paths.check(path)
    paths.refuse_gits_own(path, path)
    try:
        real_root = paths.real_root_of(root)
        real = _followed(real_root, path)
        paths.refuse_gits_own(real.relative_to(real_root), path)
        folder = os.open(real.parent, _DIRECTORY)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Refused(Code.NOT_FOUND, "there is no such directory", path=path) from error
    except (OSError, RuntimeError) as error:
        raise invalid("this cannot be written", path=path) from error
    try:
        if not Path(f"/proc/self/fd/{folder}").readlink().is_relative_to(real_root):
            raise invalid("this leads out of the workspace", path=path)
        yield folder, real.name
    finally:
        os.close(folder)


def _followed(real_root: Path, path: str) -> Path:
    """Where the file really is, or would be."""
    if not Path(path).name:
        raise invalid("this names no file", path=path)
    place = (real_root / path).parent.resolve(strict=True) / Path(path).name
    real = place.resolve(strict=True) if place.is_symlink() else place
    if not real.is_relative_to(real_root):
        raise invalid("this leads out of the workspace", path=path)
    return real


def _before(folder: int, name: str, path: str) -> _Before | None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise invalid(f"this cannot be written: {error.strerror}", path=path) from error
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise invalid("this is not a file", path=path)
        with os.fdopen(fd, "rb", closefd=False) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    finally:
        os.close(fd)
    return _Before(digest, stat.S_IMODE(about.st_mode), _mark(about))


def _mark(about: os.stat_result) -> tuple[int, int, int]:
    return about.st_ino, about.st_mtime_ns, about.st_size


def _compare(before: _Before | None, expected: str | None, path: str) -> None:
    if before is None and expected is not None:
        raise Refused(Code.CONFLICT, "there is no such file any more", path=path)
    if before is None or expected == ANYTHING:
        return
    if expected is None:
        raise Refused(Code.CONFLICT, "there is such a file already: say with If-Match which", path=path)
    if not secrets.compare_digest(before.content_hash.encode(), expected.encode()):
        raise Refused(Code.CONFLICT, "the file has changed since it was read", path=path, hash=before.content_hash)


def _replace(folder: int, name: str, content: bytes, before: _Before | None, path: str) -> None:
    draft = f".{secrets.token_hex(8)}.draft"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            os.fchmod(fd, before.mode if before else _NEW_MODE)
            file.flush()
            os.fsync(fd)
        if _has_changed(folder, name, before):
            raise Refused(Code.CONFLICT, "the file has just changed", path=path)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise


def _has_changed(folder: int, name: str, before: _Before | None) -> bool:
    try:
        now = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return before is not None
    return before is None or _mark(now) != before.mark
