"""The databases of tests that start processes of their own, whichever database this run is on."""

from __future__ import annotations

import json
import os
import sqlite3
import uuid
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from django.db import connection
from psycopg.rows import dict_row

from tests import postgresql
from tests.environment import DATABASE_URL


def on_postgresql() -> bool:
    """Whether this run's databases are PostgreSQL's."""
    return DATABASE_URL in os.environ


def url_of_test_database() -> str:
    """``KANDEV_DATABASE_URL`` of the database that pytest-django has made."""
    database = database_named(str(connection.settings_dict["NAME"]))
    return f"sqlite://{database}" if isinstance(database, Path) else database


def database_named(name: str) -> str | Path:
    """The database with this name as Django's settings have it: a PostgreSQL's URL or a SQLite's file."""
    return urlsplit(os.environ[DATABASE_URL])._replace(path=f"/{name}").geturl() if on_postgresql() else Path(name)


def new_database(server: str = "") -> dict[str, str]:
    """The setting that names a new and empty database; none on SQLite, where each data directory holds one.

    ``server`` is what `server_of` says of another deployment's database.
    """
    if not server:
        return {DATABASE_URL: postgresql.server().new_database()} if on_postgresql() else {}
    return {DATABASE_URL: postgresql.new_database(server)}


def server_of(database: str | Path) -> str:
    """The server of a PostgreSQL's database, as the URL of its database ``postgres``; empty for a file."""
    return "" if isinstance(database, Path) else urlsplit(database)._replace(path="/postgres").geturl()


def copy(source: str | Path, to: str | Path) -> None:
    """Make ``to``, a file that is not there or a database without a user, a copy of ``source``, which nobody uses."""
    if isinstance(source, Path):
        with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(to)) as other:
            one.backup(other)
    else:
        postgresql.copy(source, str(to))


def rows_of(database: str | Path, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """What a query with ``?`` in it gives, as SQLite would: ids are 32 digits, JSON is text, times are in UTC.

    ``database`` is a PostgreSQL's URL or a SQLite's file.
    """
    if isinstance(database, Path):
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as file:
            file.row_factory = sqlite3.Row
            return [dict(row) for row in file.execute(sql, values)]
    query = sql.replace("%", "%%").replace("?", "%s")
    with psycopg.connect(database, row_factory=dict_row) as session:
        found = session.execute(query.encode(), values).fetchall()
    return [{name: _as_sqlite(value) for name, value in row.items()} for row in found]


def change(database: str | Path, sql: str, *values: Any) -> int:
    """Carry out a statement with ``?`` in it, by nobody's permission; how many rows it has changed."""
    if isinstance(database, Path):
        with closing(sqlite3.connect(database)) as file, file:
            return file.execute(sql, values).rowcount
    with psycopg.connect(database) as session:
        return session.execute(sql.replace("%", "%%").replace("?", "%s").encode(), values).rowcount


def _as_sqlite(value: Any) -> Any:
    match value:
        case uuid.UUID():
            return value.hex
        case dict() | list():
            return json.dumps(value)
        case datetime():
            return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
        case _:
            return value
