"""Paths of the workspace as callers name them: relative, inside it, and nothing of git's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from executors_app.agentctl import two_users
from executors_app.agentctl.protocol import Code
from executors_app.agentctl.refusals import Refused, invalid

_PATH_LIMIT: Final = 4096
_NAME_LIMIT: Final = 255
_GITS_OWN: Final = ".git"


def check(path: str) -> None:
    """Refuse what could never be a path in the workspace, without a look at it."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise invalid("the path is not valid Unicode", field="path") from None
    parts = Path(path).parts
    if size > _PATH_LIMIT or "\0" in path or any(len(part.encode()) > _NAME_LIMIT for part in parts):
        raise invalid("this cannot be a path", field="path")
    if Path(path).is_absolute() or ".." in parts:
        raise invalid("a path is relative to the workspace", path=path)


def refuse_gits_own(path: Path | str, shown: str) -> None:
    """Refuse what git keeps for itself, in whatever case: a hook or a setting there would be run."""
    if any(part.casefold().rstrip(". ") == _GITS_OWN for part in Path(path).parts):
        raise invalid("this belongs to git itself", path=shown)


def real_root_of(root: Path) -> Path:
    """The real path of the workspace; Refused, OSError.

    An agent of another user than ours may not turn it into a link: behind it would lie what we may read and it not.
    """
    real = root.resolve(strict=True)
    if real != root and two_users.of_children():
        raise invalid("the directory of the workspace is a link to another place", path=str(root))
    return real


def confined(root: Path, path: str) -> tuple[Path, Path]:
    """The real paths of the workspace and of what ``path`` names, links followed; Refused, OSError."""
    check(path)
    try:
        real_root = real_root_of(root)
        real = (real_root / path).resolve(strict=True)
    except (RuntimeError, ValueError) as error:
        raise invalid("this cannot be a path", path=path) from error
    if not real.is_relative_to(real_root):
        raise invalid("this leads out of the workspace", path=path)
    return real_root, real


@contextmanager
def opened(root: Path, path: str, flags: int = 0) -> Iterator[int]:
    """A descriptor to read something inside the workspace; never blocks on a pipe or device.

    Confined twice: its real path must lie in the workspace, and what was then opened must lie there
    still, so that a link swapped in between gains nothing. Raises Refused.
    """
    try:
        real_root, real = confined(root, path)
        fd = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | flags)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Refused(Code.NOT_FOUND, "there is no such file", path=path) from error
    except OSError as error:
        raise invalid(f"the file cannot be read: {error.strerror}", path=path) from error
    try:
        if not Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(real_root):
            raise invalid("this leads out of the workspace", path=path)
        yield fd
    finally:
        os.close(fd)
