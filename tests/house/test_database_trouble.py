"""An unavailable database is a 503 with a code and a Retry-After header, wherever it is noticed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.contrib.sessions.middleware import SessionMiddleware
from django.db import IntegrityError, OperationalError, ProgrammingError, connection
from django.db.utils import ConnectionHandler
from django.http import HttpRequest
from django.test import Client

from kandev.databases import database_settings
from sessions_app.kernel.database_errors import DATABASE_BUSY, DATABASE_FULL, DATABASE_UNAVAILABLE, classify_error
from tests import postgresql
from tests.api.world import World, client_of, make_world


@pytest.fixture
def world(transactional_db: None) -> World:
    return make_world()


def fail_to_load(self: SessionMiddleware, request: HttpRequest) -> None:
    """Fail as early as the session lookup."""
    raise OperationalError("database or disk is full")


@pytest.mark.parametrize(
    ("path", "accept", "data"),
    [
        ("/api/v1/tasks/", "*/*", b'"code": "database_full"'),
        ("/live/", "application/json", b'"code": "database_full"'),
        ("/?archived=1", "text/html", b"<h1>The disk is full</h1>"),
        ("/admin/", "text/html", b"<h1>The disk is full</h1>"),
    ],
)
def test_response_says_what_happened_and_when_to_retry(
    path: str, accept: str, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SessionMiddleware, "process_request", fail_to_load)
    answer = Client(raise_request_exception=False).get(path, headers={"accept": accept})
    assert (answer.status_code, answer["Retry-After"], answer["Cache-Control"]) == (503, "30", "no-store")
    assert data in answer.content
    assert b"Free some space on that disk" in answer.content


def test_page_offers_a_retry_and_a_form_the_board(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionMiddleware, "process_request", fail_to_load)
    client = Client(raise_request_exception=False)
    assert b'<a href="/sweeps/?page=2">Try again</a>' in client.get("/sweeps/?page=2").content
    assert b'<a href="/">To the board</a>' in client.post("/tasks/").content


@contextmanager
def locked_by_another() -> Iterator[None]:
    """Let another connection hold a write transaction."""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout=50")
    with closing(sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.mark.embedded
def test_database_locked_for_too_long_is_reported_busy(world: World) -> None:
    api = client_of(world.member)
    with locked_by_another():
        refused = api.post("/api/v1/tasks/", {"title": "x"}, format="json")
        assert (refused.status_code, refused.json()["code"]) == (503, "database_busy")
        assert refused["Retry-After"] == "2"
    assert api.post("/api/v1/tasks/", {"title": "x"}, format="json").status_code == 201


def sqlite_error(statement: str, path: Path, *before: str) -> Any:
    """Return the exception of a failing statement on a separate SQLite database."""
    own = ConnectionHandler({"default": database_settings(f"sqlite://{path}", path.parent, 0.3)})["default"]
    try:
        with pytest.raises(OperationalError) as failed, own.cursor() as cursor:
            for one in (*before, statement):
                cursor.execute(one)
    finally:
        own.close()
    return failed.value


@pytest.mark.django_db
def test_sqlite_outages_are_distinguished_from_mistakes(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "db.sqlite3"
    assert classify_error(sqlite_error("SELECT 1", nowhere)) is DATABASE_UNAVAILABLE
    here = tmp_path / "db.sqlite3"
    small = ("CREATE TABLE t (x)", "PRAGMA max_page_count=2")
    assert classify_error(sqlite_error("INSERT INTO t VALUES (zeroblob(100000))", here, *small)) is DATABASE_FULL
    with closing(sqlite3.connect(here, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert classify_error(sqlite_error("INSERT INTO t VALUES (1)", here)) is DATABASE_BUSY
    assert classify_error(sqlite_error("INSERT INTO t VALUES (1)", here, "PRAGMA query_only=1")) is DATABASE_UNAVAILABLE
    assert classify_error(sqlite_error("SELECT * FROM nothing", here)) is None
    assert classify_error(IntegrityError("UNIQUE constraint failed")) is None
    assert classify_error(ValueError("database is locked")) is None


def postgresql_error(url: str, *statements: str) -> Any:
    """Return the exception of a failing connection to PostgreSQL, or of the last of some statements."""
    own = ConnectionHandler({"default": database_settings(url, Path(), 15)})["default"]
    try:
        with pytest.raises((OperationalError, ProgrammingError)) as failed, own.cursor() as cursor:
            for one in statements:
                cursor.execute(one)
    finally:
        own.close()
    return failed.value


@pytest.mark.postgresql
@pytest.mark.django_db
def test_postgresql_outages_are_distinguished_from_mistakes() -> None:
    url = postgresql.server().new_database()
    nowhere = url.replace(f":{postgresql.server().port}/", ":1/")
    assert classify_error(postgresql_error(nowhere)) is DATABASE_UNAVAILABLE
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("CREATE ROLE many LOGIN PASSWORD 'many' CONNECTION LIMIT 0")
        owner.execute("CREATE TABLE t (x int)")
        too_many = url.replace(f"{postgresql.OWNER}:{postgresql.server().password}@", "many:many@")
        assert classify_error(postgresql_error(too_many)) is DATABASE_UNAVAILABLE
        end = "SELECT pg_terminate_backend(pg_backend_pid())"
        assert classify_error(postgresql_error(url, end)) is DATABASE_UNAVAILABLE
        with owner.transaction():
            owner.execute("LOCK TABLE t")
            assert classify_error(postgresql_error(url, "SET lock_timeout=50", "SELECT * FROM t")) is DATABASE_BUSY
        owner.execute("DROP ROLE many")
    assert classify_error(postgresql_error(url, "SELECT * FROM nothing")) is None
