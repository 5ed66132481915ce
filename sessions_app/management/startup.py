"""Start-up steps of commands: restrict file permissions, and check that the database can be used."""

from __future__ import annotations

import logging
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, Error, connection, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader

from executors_app.backoff import Backoff

log = logging.getLogger(__name__)

PRIVATE_UMASK: Final = 0o077
"""The umask of our processes: no other user can access the files that they create."""
DEMO_REPOSITORY: Final = "demo-repository"
AGENT_DIRECTORIES: Final = frozenset(
    {"worktrees", "trash", "workspaces", "agent_homes", "repositories", DEMO_REPOSITORY, "agent-tests"}
)
"""Directories that are private themselves, and whose files keep their modes.

Agents choose the modes of the files they write there, and a sandbox under another user id reads some of our own files.
"""


def set_private_umask() -> None:
    """Make every file that this process creates from now on private to its user."""
    os.umask(PRIVATE_UMASK)


def restrict_in_background(directory: Path) -> None:
    """Restrict ``directory`` in a thread, because it may hold many files and no start should wait for that."""
    threading.Thread(target=restrict_permissions, args=(directory,), name="private-files", daemon=True).start()


def restrict_permissions(directory: Path) -> int:
    """Remove the permissions of group and others below ``directory``; return how many files had some.

    Symbolic links are not followed. A file that cannot be changed is logged, and the rest is still restricted.
    """
    closed = 0
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            closed += _restrict(Path(folder, name))
        if Path(folder) == directory:
            folders[:] = [name for name in folders if name not in AGENT_DIRECTORIES]
    if closed:
        log.warning(
            "%d files in %s were accessible to other users; their permissions are now private", closed, directory
        )
    return closed


def _restrict(path: Path) -> bool:
    try:
        if not _is_accessible_to_others(path.lstat()):
            return False
        # Changed through a descriptor, so that a symbolic link put in its place meanwhile is not followed.
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
        log.warning("%s is accessible to other users, and its permissions cannot be changed: %s", path, error.strerror)
        return False
    return True


def _is_accessible_to_others(found: os.stat_result) -> bool:
    """Return whether other users can access it. A file with several hard links, as in a clone, is left alone."""
    has_names = not stat.S_ISDIR(found.st_mode) and found.st_nlink > 1
    return bool(found.st_mode & PRIVATE_UMASK) and not stat.S_ISLNK(found.st_mode) and not has_names


EXIT_COULD_NOT_RUN: Final = 2
"""Exit status of a command that could not run and has changed nothing."""


FIRST_RELEASE: Final = ("sessions_app", "0001_release_1_0")
"""The migration with which the database of every release begins."""


KEY_CHECK_MIGRATION: Final = ("executors_app", "0007_secret_key_check")
WRONG_KEY: Final = (
    "secret_key_wrong: the secrets of this database are encrypted with another secret key; "
    "set KANDEV_SECRET_KEY, or the file that holds it, to that key, or add it to KANDEV_SECRET_KEY_FALLBACKS. "
    "If it is lost, run manage.py secret_key --accept-loss"
)


def refuse_incompatible_database(*, may_write: bool = True) -> None:
    """Raise CommandError with status 2 if the database has unknown migrations, or secrets of another secret key.

    ``may_write``: whether a database of an earlier release gets the value that its key is checked with.

    With unknown migrations, its tables may differ from what this code expects: it was migrated by a newer version, or
    by code from before the first release. Raises django.db.Error if it cannot be reached.
    """
    loader = MigrationLoader(connection)
    unknown = sorted(loader.applied_migrations.keys() - loader.disk_migrations.keys())
    if not unknown:
        _refuse_wrong_secret_key(loader, may_write=may_write)
        return
    if FIRST_RELEASE not in loader.applied_migrations:
        reason = (
            "database_unreleased: this database was made by an unreleased version from before 1.0.0, "
            "which cannot be upgraded; start with an empty database"
        )
    else:
        reason = (
            f"database_newer: this database was migrated by a newer version of Kandev ({'.'.join(unknown[0])}); "
            f"install that version, or restore a backup from before the upgrade"
        )
    raise CommandError(reason, returncode=EXIT_COULD_NOT_RUN)


def _refuse_wrong_secret_key(loader: MigrationLoader, *, may_write: bool) -> None:
    """Refuse another key, as far as the migrations that are applied allow to say."""
    if may_write and loader.disk_migrations.keys() <= loader.applied_migrations.keys():
        refuse_wrong_secret_key()
    elif KEY_CHECK_MIGRATION in loader.applied_migrations:
        from executors_app import secret_key  # noqa: PLC0415 - see refuse_wrong_secret_key

        _refuse_if_wrong(secret_key.refuse_other_key)


def refuse_wrong_secret_key() -> None:
    """Raise CommandError with status 2 if the secret key is not the database's. All migrations must be applied.

    Raises django.db.Error if the database cannot be reached.
    """
    from executors_app import secret_key  # noqa: PLC0415 - it has models: the web server sets its umask before them

    _refuse_if_wrong(secret_key.check_secret_key)


def _refuse_if_wrong(check: Callable[[], None]) -> None:
    from executors_app import secret_key  # noqa: PLC0415 - see refuse_wrong_secret_key

    try:
        check()
    except secret_key.WrongSecretKey as error:
        raise CommandError(WRONG_KEY, returncode=EXIT_COULD_NOT_RUN) from error


def refuse_incompatible_database_to_server() -> None:
    """End this process with status 2 and one line if the database is incompatible.

    A database that cannot be reached now is no reason: the web server starts without one, and says so on its pages.
    """
    try:
        with suppress(Error):
            refuse_incompatible_database()
    except CommandError as refusal:
        sys.stderr.write(f"kandev: {refusal}\n")
        sys.exit(refusal.returncode)
    finally:
        connections.close_all()


def check_database(*, may_write: bool = True) -> None:
    """Raise CommandError with status 2 if the database cannot be reached, or its migrations are not this code's.

    ``may_write`` is that of `refuse_incompatible_database`.
    """
    if connection.vendor == "sqlite" and not _is_nonempty_file(Path(connection.settings_dict["NAME"])):
        raise CommandError("the database does not exist yet; run manage.py migrate", returncode=EXIT_COULD_NOT_RUN)
    try:
        refuse_incompatible_database(may_write=may_write)
        missing = count_unapplied_migrations()
    except (DatabaseError, OSError) as error:
        if str(error).strip():
            reason = str(error).strip().splitlines()[0]
        else:
            reason = type(error).__name__
        raise CommandError(f"the database cannot be reached: {reason}", returncode=EXIT_COULD_NOT_RUN) from error
    if missing:
        raise CommandError(
            f"the database has {missing} unapplied migrations; run manage.py migrate", returncode=EXIT_COULD_NOT_RUN
        )


def count_unapplied_migrations() -> int:
    """Return the number of migrations that the database lacks."""
    executor = MigrationExecutor(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def add_wait_option(parser: CommandParser) -> None:
    """Add ``--wait-for-database``."""
    parser.add_argument(
        "--wait-for-database",
        action="store_true",
        help="if the database cannot be reached at the start, wait for it instead of ending with status 2",
    )


def wait_for_database() -> None:
    """Return when the database can be reached; what it says until then is logged once."""
    backoff, is_waiting = Backoff(), False
    while True:
        try:
            connection.ensure_connection()
        except Error as error:
            if not is_waiting:
                log.warning("the database cannot be reached, waiting for it: %s", str(error).splitlines()[0])
            is_waiting = True
            time.sleep(backoff.record_failure())
        else:
            return


@contextmanager
def report_database_errors() -> Iterator[None]:
    """Turn an error of the database into a CommandError of one line, with status 2."""
    try:
        yield
    except Error as error:
        reason = str(error).splitlines()[0]
        raise CommandError(f"the database cannot be used: {reason}", returncode=EXIT_COULD_NOT_RUN) from error


@contextmanager
def progress_bar(title: str, *, timed: bool = False, silent: bool = False) -> Iterator[Callable[..., None]]:
    """Show a progress bar on a terminal, and nothing elsewhere; yield what reports done, total and a new title."""
    if silent or not sys.stderr.isatty():
        yield lambda *report: None
        return
    from rich import console, progress  # noqa: PLC0415 - slow, and no long-running process needs it

    columns = [progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn()]
    if timed:
        columns.append(progress.TimeElapsedColumn())
    with progress.Progress(*columns, console=console.Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total, name=title: bar.update(task, completed=done, total=total, description=name)


def _is_nonempty_file(path: Path) -> bool:
    """Return whether a file exists and is not empty."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
