"""List, read and write files of the workspace, never outside of it.

A write replaces only the content that its writer has read. All calls block.
"""

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
from itertools import islice
from pathlib import Path
from typing import Any, Final

from executors_app.machine.process import spawning
from executors_app.wire.file_content import describe_content, hash_content
from executors_app.wire.protocol import ApiError, Code, validation_error

_PATH_LIMIT: Final = 4096
_NAME_LIMIT: Final = 255
_GIT_DIRECTORY: Final = ".git"


def check_path(path: str) -> None:
    """Reject what cannot be a path in the workspace, without touching the disk; raises ApiError."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise validation_error("the path is not valid Unicode", field="path") from None
    parts = Path(path).parts
    if size > _PATH_LIMIT or "\0" in path or any(len(part.encode()) > _NAME_LIMIT for part in parts):
        raise validation_error("this is not a valid path", field="path")
    if Path(path).is_absolute() or ".." in parts:
        raise validation_error("the path must be relative to the workspace", path=path)


def refuse_git_files(path: Path | str, shown: str) -> None:
    """Reject paths below ``.git``, in any case: git would run a hook or a setting there. Raises ApiError."""
    if any(part.casefold().rstrip(". ") == _GIT_DIRECTORY for part in Path(path).parts):
        raise validation_error("this path belongs to git", path=shown)


def resolve_root(root: Path) -> Path:
    """Return the real path of the workspace; raises ApiError, OSError.

    If the agent runs as another user, the workspace must not be a link: it could point to files that only we can read.
    """
    real = root.resolve(strict=True)
    if real != root and spawning.child_user_arguments():
        raise validation_error("the directory of the workspace is a link", path=str(root))
    return real


def resolve_path(root: Path, path: str) -> tuple[Path, Path]:
    """Return the real paths of the workspace and of ``path`` in it; raises ApiError, OSError."""
    check_path(path)
    try:
        real_root = resolve_root(root)
        real = (real_root / path).resolve(strict=True)
    except (RuntimeError, ValueError) as error:
        raise validation_error("this is not a valid path", path=path) from error
    if not real.is_relative_to(real_root):
        raise validation_error("the path leads out of the workspace", path=path)
    return real_root, real


@contextmanager
def open_path(root: Path, path: str, flags: int = 0) -> Iterator[int]:
    """Open something inside the workspace for reading; never blocks on a pipe or device. Raises ApiError.

    Checked twice: the real path must be inside the workspace, and so must the file that was actually opened. A link
    that is swapped in between the two gains nothing.
    """
    try:
        real_root, real = resolve_path(root, path)
        fd = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | flags)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ApiError(Code.NOT_FOUND, "there is no such file", path=path) from error
    except OSError as error:
        raise validation_error(f"the file cannot be read: {error.strerror}", path=path) from error
    try:
        if not Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(real_root):
            raise validation_error("the path leads out of the workspace", path=path)
        yield fd
    finally:
        os.close(fd)


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
    temporary = f".{secrets.token_hex(8)}.draft"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            os.fchmod(fd, before.mode if before else _NEW_MODE)
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
