"""Databases for tests that start their own processes, on whichever database this run uses."""

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
    """Return whether this run uses PostgreSQL."""
    return DATABASE_URL in os.environ


def url_of_test_database() -> str:
    """Return ``KANDEV_DATABASE_URL`` of the database that pytest-django created."""
    database = database_named(str(connection.settings_dict["NAME"]))
    return f"sqlite://{database}" if isinstance(database, Path) else database


def database_named(name: str) -> str | Path:
    """Return the database with this name: a URL on PostgreSQL, a file on SQLite."""
    return urlsplit(os.environ[DATABASE_URL])._replace(path=f"/{name}").geturl() if on_postgresql() else Path(name)


def new_database(server: str = "") -> dict[str, str]:
    """Return the environment variable for a new, empty database.

    ``server`` is the result of `server_of` for another deployment's database. On SQLite there is no variable, since
    each data directory has its own database.
    """
    if not server:
        return {DATABASE_URL: postgresql.server().new_database()} if on_postgresql() else {}
    return {DATABASE_URL: postgresql.new_database(server)}


def server_of(database: str | Path) -> str:
    """Return the URL of the maintenance database on the same PostgreSQL server; an empty string for an SQLite file."""
    return "" if isinstance(database, Path) else urlsplit(database)._replace(path="/postgres").geturl()


def copy(source: str | Path, to: str | Path) -> None:
    """Copy ``source`` to ``to``: a file that does not exist yet, or a database without connections.

    ``source`` is not in use.
    """
    if isinstance(source, Path):
        with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(to)) as other:
            one.backup(other)
    else:
        postgresql.copy(source, str(to))


def rows_of(database: str | Path, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """Return the rows of a query with ``?`` placeholders.

    ``database`` is a PostgreSQL URL or an SQLite file. Values have SQLite's form: ids are 32 digits, JSON is text, and
    times are UTC.
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
    """Execute a statement with ``?`` placeholders, without any check of Kandev; return how many rows it changed."""
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
