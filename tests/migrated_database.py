"""A migrated database, created once in a test run; tests copy it instead of running the migrations."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from kandev.databases import EMBEDDED_NAME
from tests import databases, postgresql, preloaded
from tests.environment import DATABASE_URL, RUN_DIRECTORY

MIGRATED_FILE: Final = "migrated.sqlite3"
"""Name of the migrated SQLite database in the directory of the test run."""


def copy_migrated(to: str | Path) -> None:
    """Copy the migrated database to ``to``: a PostgreSQL database, or a file that does not exist yet."""
    databases.copy(_migrated(databases.server_of(to)), to)


@cache
def _migrated(server: str) -> str | Path:
    """Return the migrated file, or the URL of the migrated database on a PostgreSQL server."""
    if not server:
        return _create_once(MIGRATED_FILE, _write_file)
    url = postgresql.new_database(server)
    postgresql.restore(_create_once("migrated.sql", lambda file: _write_dump(server, file)), url)
    return url


def _create_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return a file of the test run; the first process to ask writes it with ``make`` while the others wait."""
    made = Path(os.environ[RUN_DIRECTORY]) / name
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            incomplete = made.with_suffix(".incomplete")
            incomplete.unlink(missing_ok=True)
            make(incomplete)
            incomplete.rename(made)
    return made


def _write_file(file: Path) -> None:
    with tempfile.TemporaryDirectory(dir=file.parent) as directory:
        _migrate(directory, {})
        databases.copy(Path(directory, EMBEDDED_NAME), file)


def _write_dump(server: str, file: Path) -> None:
    url = postgresql.new_database(server)
    with tempfile.TemporaryDirectory(dir=file.parent) as directory:
        _migrate(directory, {DATABASE_URL: url})
    postgresql.dump(url, file)


def _migrate(directory: str, database: Mapping[str, str]) -> None:
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "KANDEV_DATA_DIR": directory, **database}
    done = preloaded.run(["manage.py", "migrate", "-v", "0", "--skip-checks"], env=env, timeout=600)
    assert done.returncode == 0, done.stderr
