"""Move refs of a workspace despite lock files that killed gits have left behind.

git creates ``REF.lock``, writes it and renames it. A git that is killed in between leaves the file, and every later one
is refused. Each git of ours that moves a ref therefore holds a lock of the kernel's meanwhile, which ends with the
process: whoever has that lock knows that no git of ours needs the file.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from executors_app.machine.git.workspace_git import GitError, GitOutput
from executors_app.machine.git.worktrees import wait_for_lock
from executors_app.machine.process import spawning

logger = logging.getLogger(__name__)

_OURS_SECONDS: Final = 5.0
"""Maximum wait for another agentctl in the same repository."""
_OTHERS_SECONDS: Final = 1.0
"""How long a lock file must stay as it is: gits of people hold no lock of ours, and a ref only for a moment."""
_POLL: Final = 0.05
_REMOVE_SECONDS: Final = 10.0


def move_ref(update: Callable[..., GitOutput], repository: Path, ref: str, seconds: float) -> GitOutput:
    """Run ``update``, a ``git update-ref`` of ``ref``; once more after removing a stale lock file. Raises GitError.

    ``repository`` is the directory that contains ``refs``. ``update`` is passed ``hold``: descriptors for git.
    ``seconds`` limit the wait for another agentctl: an agent can hold that lock as long as it likes.
    """
    with _ref_lock(repository, min(_OURS_SECONDS, seconds)) as held:
        try:
            return update(hold=held)
        except GitError as error:
            if not held or error.exit_code is None or not _remove_stale(repository / f"{ref}.lock"):
                raise
        return update(hold=held)


@contextmanager
def _ref_lock(repository: Path, seconds: float) -> Iterator[tuple[int, ...]]:
    """Hold the lock of those who move refs here; yield its descriptor, or nothing if it cannot be taken."""
    try:
        folder = os.open(repository / "refs", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield ()
        return
    try:
        yield (folder,) if wait_for_lock(folder, seconds) else ()
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
    # With the agent's rights: it could replace a directory on the way by a link.
    command = ("rm", "--force", "--", str(lock))
    subprocess.run(
        command, capture_output=True, check=False, timeout=_REMOVE_SECONDS, **spawning.child_user_arguments()
    )
    return True


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        about = path.lstat()
    except OSError:
        return None
    return about.st_dev, about.st_ino, about.st_mtime_ns
