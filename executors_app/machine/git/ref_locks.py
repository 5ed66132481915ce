"""Move refs of a workspace despite lock files that killed gits have left behind.

git creates ``REF.lock``, writes it and renames it. A git that is killed in between leaves the file, and every later one
is refused. Each git of ours that moves a ref therefore holds a lock of the kernel's meanwhile, which ends with the
process: whoever has that lock knows that no git of ours needs the file.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from executors_app.machine.git import git_directory
from executors_app.machine.git.git_directory import InvalidPointer, parse_pointer, read_git_file
from executors_app.machine.process import spawning
from executors_app.wire.errors import RepositoryUnusable
from executors_app.wire.protocol import ApiError

logger = logging.getLogger(__name__)

_OURS_SECONDS: Final = 5.0
"""Maximum wait for another agentctl in the same repository."""
_OTHERS_SECONDS: Final = 1.0
"""How long a lock file must stay as it is: gits of people hold no lock of ours, and a ref only for a moment."""
_POLL: Final = 0.05
_REMOVE_SECONDS: Final = 10.0
_LOCK_POLL: Final = 0.01
_Output = TypeVar("_Output")


@dataclass(frozen=True, slots=True)
class RefPlace:
    """A ref that git moves, with the files by which it does so."""

    repository: Path
    """The directory that contains ``refs``."""
    lock: Path
    """The lock file of git's."""


def place_of_moved_ref(root: Path, arguments: Sequence[str]) -> RefPlace | None:
    """Return the ref that a git in ``root`` moves with these arguments; None if it moves none."""
    if arguments[0] not in ("update-ref", "symbolic-ref"):
        return None
    names = [word for word in arguments[1:] if not word.startswith("-")]
    is_moved = bool(names) and (arguments[0] == "update-ref" or len(names) == 2)
    if is_moved:
        return place_of_ref(root, names[0])
    return None


def place_of_ref(root: Path, ref: str) -> RefPlace | None:
    """Return where a repository, or the working tree of one, has a ref; None if there is no repository."""
    own = git_directory.git_directory_of(root)
    if own is None:
        own = root  # bare
    try:
        common = parse_pointer(read_git_file(own / "commondir"), own)
    except InvalidPointer:
        common = own
    if not (common / "refs").is_dir():
        return None
    folder = own
    if ref.startswith("refs/"):
        folder = common
    return RefPlace(common, folder / f"{ref}.lock")


def move_ref(update: Callable[[tuple[int, ...]], _Output], place: RefPlace, seconds: float) -> _Output:
    """Run ``update``, a git that moves a ref; once more after removing a stale lock file. Raises what it raises.

    ``update`` is passed descriptors, which git has to inherit. ``seconds`` limit the wait for another agentctl: an
    agent can hold that lock as long as it likes.
    """
    with _ref_lock(place.repository, min(_OURS_SECONDS, seconds)) as held:
        try:
            return update(held)
        except (ApiError, RepositoryUnusable) as error:
            if not held or _exit_code(error) is None or not _remove_stale(place.lock):
                raise
        return update(held)


def remove_stale_lock(place: RefPlace) -> None:
    """Remove the lock file of a ref if no git needs it: for a git that may run too long to hold our lock."""
    if not os.path.lexists(place.lock):
        return
    with _ref_lock(place.repository, _OURS_SECONDS) as held:
        if held:
            _remove_stale(place.lock)


def _exit_code(error: ApiError | RepositoryUnusable) -> int | None:
    """Return the exit code of a git that failed; None if it was killed, or never started."""
    code: int | None = getattr(error, "exit_code", None)
    if code is None:
        code = error.details.get("exit_code")
    return code


def wait_for_lock(descriptor: int, seconds: float) -> bool:
    """Take the exclusive lock on an open file; return False if another process keeps it for so long. Blocks."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOCK_POLL)
        else:
            return True


@contextmanager
def _ref_lock(repository: Path, seconds: float) -> Iterator[tuple[int, ...]]:
    """Hold the lock of those who move refs here; yield its descriptor, or nothing if it cannot be taken."""
    try:
        folder = os.open(repository / "refs", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield ()
        return
    try:
        if wait_for_lock(folder, seconds):
            yield (folder,)
        else:
            yield ()
    finally:
        os.close(folder)


def _remove_stale(lock: Path) -> bool:
    """Remove a lock file that stays as it is; return whether there was one, so that another try may succeed."""
    found = _identity(lock)
    if found is None:
        return False
    until = time.monotonic() + _OTHERS_SECONDS
    while time.monotonic() < until:
        time.sleep(_POLL)
        if _identity(lock) != found:
            return True
    logger.warning("%s was left behind by a git that was killed, and is removed", lock)
    remove_as_agent(lock)
    return True


def remove_as_agent(path: Path) -> None:
    """Remove a file of a repository with the agent's rights: it could replace a directory on the way by a link."""
    command = ("rm", "--force", "--", str(path))
    subprocess.run(
        command, capture_output=True, check=False, timeout=_REMOVE_SECONDS, **spawning.child_user_arguments()
    )


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        about = path.lstat()
    except OSError:
        return None
    return about.st_dev, about.st_ino, about.st_mtime_ns
