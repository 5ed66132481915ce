"""What a command does before it begins: restrict file permissions, and check that the database can be used."""

from __future__ import annotations

import logging
import os
import stat
import threading
from pathlib import Path
from typing import Final

from django.core.management.base import CommandError
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

log = logging.getLogger(__name__)

PRIVATE_UMASK: Final = 0o077
"""The umask of our processes: nothing that they make is for others."""
DEMO_REPOSITORY: Final = "demo-repository"
AGENT_DIRECTORIES: Final = frozenset({"worktrees", "workspaces", "agent_homes", "repositories", DEMO_REPOSITORY})
"""Directories that are private themselves, while the files inside keep their modes.

Agents choose the modes of what they write there, and a sandbox under another user id reads some of our own files.
"""


def set_private_umask() -> None:
    """Whatever this process makes from here on is for its user alone."""
    os.umask(PRIVATE_UMASK)


def restrict_in_background(directory: Path) -> None:
    """Close ``directory`` beside what goes on: there may be many files, and no agent waits for this."""
    threading.Thread(target=restrict_permissions, args=(directory,), name="private-files", daemon=True).start()


def restrict_permissions(directory: Path) -> int:
    """Take the rights of others from every file and folder below ``directory``; how many had some.

    Symbolic links are not followed. A file that cannot be changed is said, and keeps no other open.
    """
    closed = 0
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            closed += _restrict(Path(folder, name))
        if Path(folder) == directory:
            folders[:] = [name for name in folders if name not in AGENT_DIRECTORIES]
    if closed:
        log.warning("%d files in %s could be read by others; now only their owner can", closed, directory)
    return closed


def _restrict(path: Path) -> bool:
    try:
        if not _is_accessible_to_others(path.lstat()):
            return False
        # Opened, and changed by its descriptor: a link that is put in its place meanwhile leads nowhere.
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor)
            if _is_accessible_to_others(mode):
                Path(f"/proc/self/fd/{descriptor}").chmod(stat.S_IMODE(mode.st_mode) & ~PRIVATE_UMASK)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return False
    except OSError as error:
        log.warning("%s can be read by others, and that cannot be changed: %s", path, error.strerror)
        return False
    return True


def _is_accessible_to_others(found: os.stat_result) -> bool:
    """Whether others may do anything with it. A file with a second name, as an object of a clone, is not ours alone."""
    has_names = not stat.S_ISDIR(found.st_mode) and found.st_nlink > 1
    return bool(found.st_mode & PRIVATE_UMASK) and not stat.S_ISLNK(found.st_mode) and not has_names


EXIT_COULD_NOT_RUN: Final = 2
"""Exit code of a command that has touched nothing (interfaces 1)."""


def check_database() -> None:
    """Refuse (CommandError, code 2) a database that cannot be reached or lacks migrations, touching nothing."""
    if connection.vendor == "sqlite" and not _is_nonempty_file(Path(connection.settings_dict["NAME"])):
        raise CommandError("there is no database yet; run manage.py migrate", returncode=EXIT_COULD_NOT_RUN)
    try:
        executor = MigrationExecutor(connection)
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except (DatabaseError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CommandError(f"the database cannot be reached: {reason}", returncode=EXIT_COULD_NOT_RUN) from error
    if missing:
        raise CommandError(
            f"the database lacks {len(missing)} migrations; run manage.py migrate", returncode=EXIT_COULD_NOT_RUN
        )


def _is_nonempty_file(path: Path) -> bool:
    """Whether a file is there and was written to: an empty one is made at every start, so that nobody else can."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
