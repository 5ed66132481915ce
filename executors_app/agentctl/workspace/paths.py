"""Open paths of the workspace, never anything outside of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from executors_app.machine.process import spawning
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
