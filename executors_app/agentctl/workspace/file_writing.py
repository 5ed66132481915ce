"""Write files of the workspace; a write replaces only the content that its writer has read. All calls block."""

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

from executors_app.agentctl.workspace.paths import check_path, refuse_git_files, resolve_root
from executors_app.wire.file_content import hash_content
from executors_app.wire.protocol import ApiError, Code, validation_error

WRITE_LIMIT: Final = 4 << 20
"""Maximum bytes of a file's content."""
ANY_CONTENT: Final = "*"
_PERMISSION_ERRORS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG})
_NEW_MODE: Final = 0o644
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class _ExistingFile:
    """The file before a write: hash, mode, and a mark that shows later changes."""

    content_hash: str
    mode: int
    mark: tuple[int, int, int]


def write_content(root: Path, path: str, content: bytes, expected: str | None) -> dict[str, Any]:
    """Write a file and return ``{path, size, hash, created}``; raises ApiError.

    ``expected`` is the hash of the current content, ``*`` for any content, or None for no file; otherwise the write is
    rejected as a *conflict*. The file's mode is kept. A link is followed if its target is inside the workspace.
    """
    if len(content) > WRITE_LIMIT:
        raise ApiError(Code.TOO_LARGE, f"a file may have at most {WRITE_LIMIT} bytes", path=path)
    with _open_parent(root, path) as (folder, name):
        before = _read_existing(folder, name, path)
        _compare(before, expected, path)
        try:
            _replace(folder, name, content, before, path)
        except OSError as error:
            if error.errno not in _PERMISSION_ERRORS:
                raise
            raise validation_error(f"this cannot be written: {error.strerror}", path=path) from error
    return {"path": path, "size": len(content), "hash": hash_content(content), "created": before is None}


@contextmanager
def _open_parent(root: Path, path: str) -> Iterator[tuple[int, str]]:
    """Open the directory that contains or will contain the file; yield it with the file's name."""
    check_path(path)
    refuse_git_files(path, path)
    try:
        real_root = resolve_root(root)
        real = _resolve_links(real_root, path)
        refuse_git_files(real.relative_to(real_root), path)
        folder = os.open(real.parent, _DIRECTORY)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ApiError(Code.NOT_FOUND, "there is no such directory", path=path) from error
    except (OSError, RuntimeError) as error:
        raise validation_error("this cannot be written", path=path) from error
    try:
        if not Path(f"/proc/self/fd/{folder}").readlink().is_relative_to(real_root):
            raise validation_error("the path leads out of the workspace", path=path)
        yield folder, real.name
    finally:
        os.close(folder)


def _resolve_links(real_root: Path, path: str) -> Path:
    """Return the real path of a file that may not exist yet."""
    if not Path(path).name:
        raise validation_error("the path does not name a file", path=path)
    path_below_root = (real_root / path).parent.resolve(strict=True) / Path(path).name
    if path_below_root.is_symlink():
        real = path_below_root.resolve(strict=True)
    else:
        real = path_below_root
    if not real.is_relative_to(real_root):
        raise validation_error("the path leads out of the workspace", path=path)
    return real


def _read_existing(folder: int, name: str, path: str) -> _ExistingFile | None:
    # O_NONBLOCK, because opening a pipe without a writer would wait forever.
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise validation_error(f"this cannot be written: {error.strerror}", path=path) from error
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise validation_error("this is not a file", path=path)
        with os.fdopen(fd, "rb", closefd=False) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    finally:
        os.close(fd)
    return _ExistingFile(digest, stat.S_IMODE(about.st_mode), _change_mark(about))


def _change_mark(about: os.stat_result) -> tuple[int, int, int]:
    return about.st_ino, about.st_mtime_ns, about.st_size


def _compare(before: _ExistingFile | None, expected: str | None, path: str) -> None:
    if before is None and expected is not None:
        raise ApiError(Code.CONFLICT, "the file no longer exists", path=path)
    if before is None or expected == ANY_CONTENT:
        return
    if expected is None:
        raise ApiError(Code.CONFLICT, "the file already exists; send its hash in If-Match to replace it", path=path)
    if not secrets.compare_digest(before.content_hash.encode(), expected.encode()):
        raise ApiError(Code.CONFLICT, "the file has changed since it was read", path=path, hash=before.content_hash)


def _replace(folder: int, name: str, content: bytes, before: _ExistingFile | None, path: str) -> None:
    temporary, mode = f".{secrets.token_hex(8)}.draft", _NEW_MODE
    if before:
        mode = before.mode
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            os.fchmod(fd, mode)
            file.flush()
            os.fsync(fd)
        # Checked after the content is on disk and right before the rename, to keep the window small in which
        # a change by the agent is lost.
        if _has_changed(folder, name, before):
            raise ApiError(Code.CONFLICT, "the file has just changed", path=path)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _has_changed(folder: int, name: str, before: _ExistingFile | None) -> bool:
    try:
        now = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return before is not None
    return before is None or _change_mark(now) != before.mark
