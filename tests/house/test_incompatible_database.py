"""Nothing starts on a database of a newer version, or on one from before the first release."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from kandev.databases import EMBEDDED_NAME
from sessions_app.management.startup import FIRST_RELEASE
from tests import databases, preloaded
from tests.environment import DATABASE_URL
from tests.migrated_database import copy_migrated
from tests.network import free_port

pytestmark = pytest.mark.database

COMMANDS: Final = {
    "serve": ("manage.py", "serve", "--port", "0"),
    "supervise": ("manage.py", "supervise"),
    "worker": ("manage.py", "qcluster", "--skip-checks"),
    "sweep": ("manage.py", "recover_sessions"),
    "migrate": ("manage.py", "migrate"),
    "maintain": ("manage.py", "maintain"),
    "web": ("-m", "daphne", "-v", "0", "-p", "PORT", "kandev.asgi:application"),
}
EACH_COMMAND: Final = pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, id=name, marks=[] if name in {"supervise", "migrate"} else pytest.mark.any_database)
        for name, command in COMMANDS.items()
    ],
)
"""On PostgreSQL two are enough: all of them ask the same function, which reads the same table."""
INSERT: Final = "INSERT INTO django_migrations (app, name, applied) VALUES (?, ?, '2026-01-01 00:00:00')"
DELETE: Final = "DELETE FROM django_migrations WHERE app = ? AND name = ?"


@dataclass(frozen=True)
class MigratedDatabase:
    """A migrated database of its own, and the environment in which commands use it."""

    database: str | Path
    env: Mapping[str, str]

    @classmethod
    def make(cls, data: Path) -> MigratedDatabase:
        """Copy a migrated database into a new data directory, or to a new PostgreSQL database."""
        data.mkdir(mode=0o700)
        variables = databases.new_database()
        database = variables.get(DATABASE_URL, data / EMBEDDED_NAME)
        copy_migrated(database)
        env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "KANDEV_DATA_DIR": str(data), **variables}
        return cls(database, env)

    def make_newer(self) -> None:
        """Record a migration that only a later version has."""
        databases.change(self.database, DELETE, *FIRST_RELEASE)
        databases.change(self.database, INSERT, *FIRST_RELEASE)
        databases.change(self.database, INSERT, "sessions_app", "0999_later")

    def make_unreleased(self) -> None:
        """Leave the migrations of a commit from before the first release."""
        databases.change(self.database, DELETE, *FIRST_RELEASE)
        databases.change(self.database, INSERT, "sessions_app", "0044_unreleased")

    def refusal(self, command: tuple[str, ...]) -> str:
        """Run a command, which must end with status 2, and return the one line that it writes."""
        arguments = [word.replace("PORT", str(free_port())) for word in command]
        done = preloaded.run(arguments, env=self.env, timeout=60)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr.removeprefix("CommandError: ").removeprefix("kandev: ")

    def applied(self) -> list[dict[str, object]]:
        """Return the recorded migrations."""
        return databases.rows_of(self.database, "SELECT app, name FROM django_migrations ORDER BY app, name")


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> MigratedDatabase:
    made = MigratedDatabase.make(tmp_path_factory.mktemp("newer") / "data")
    made.make_newer()
    return made


@pytest.fixture(scope="module")
def unreleased(tmp_path_factory: pytest.TempPathFactory) -> MigratedDatabase:
    made = MigratedDatabase.make(tmp_path_factory.mktemp("unreleased") / "data")
    made.make_unreleased()
    return made


@EACH_COMMAND
def test_newer_database_is_refused(command: tuple[str, ...], newer: MigratedDatabase) -> None:
    before = newer.applied()
    assert newer.refusal(command).startswith("database_newer: this database was migrated by a newer version of Kandev")
    assert newer.applied() == before


@EACH_COMMAND
def test_database_from_before_the_first_release_is_refused(
    command: tuple[str, ...], unreleased: MigratedDatabase
) -> None:
    before = unreleased.applied()
    assert unreleased.refusal(command).startswith("database_unreleased: this database was made by an unreleased")
    assert unreleased.applied() == before


def test_unknown_migrations_can_be_pruned(tmp_path: Path) -> None:
    made = MigratedDatabase.make(tmp_path / "data")
    databases.change(made.database, INSERT, "sessions_app", "0999_later")
    done = preloaded.run(["manage.py", "migrate", "sessions_app", "--prune"], env=made.env, timeout=60)
    assert done.returncode == 0, done.stderr
    assert {"app": "sessions_app", "name": "0999_later"} not in made.applied()
