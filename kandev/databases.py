"""Database settings from one URL: the embedded SQLite file, or PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

from kandev.data_directory import close_database

EMBEDDED_NAME = "kandev.sqlite3"
SQLITE_PRAGMAS = (
    "PRAGMA journal_mode=WAL;PRAGMA synchronous=FULL;PRAGMA mmap_size=134217728;"
    "PRAGMA journal_size_limit=27103364;PRAGMA cache_size=-20000;"
)


def database_settings(url: str, data_dir: Path, lease_ttl: float) -> dict[str, Any]:
    """``DATABASES["default"]`` for a ``sqlite:``, ``postgres:`` or ``postgresql:`` URL, or the embedded file for none.

    Waits for locks end well within a lease of ``lease_ttl`` seconds (rule 6).
    """
    if not url:
        return _sqlite(data_dir / EMBEDDED_NAME, data_dir, lease_ttl)
    parts = urlsplit(url)
    if parts.scheme == "sqlite" and parts.path.strip("/"):
        return _sqlite(Path(unquote(parts.path)), data_dir, lease_ttl)
    if parts.scheme in {"postgres", "postgresql"} and parts.path.strip("/"):
        return _postgres(url, lease_ttl)
    raise ImproperlyConfigured(
        "KANDEV_DATABASE_URL must look like sqlite:///FILE or postgres://USER:PASSWORD@HOST/NAME"
    )


def _sqlite(path: Path, data_dir: Path, lease_ttl: float) -> dict[str, Any]:
    close_database(path)
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {
            "timeout": lease_ttl / 3,
            # Taking the write lock at BEGIN leaves no lock upgrade to fail in the middle of a transaction.
            "transaction_mode": "IMMEDIATE",
            "init_command": SQLITE_PRAGMAS,
        },
        # A file, so that the tests' threads and child processes can open it too.
        "TEST": {"NAME": data_dir / "test.sqlite3"},
    }


def _postgres(url: str, lease_ttl: float) -> dict[str, Any]:
    parts = urlsplit(url)
    try:
        port = parts.port or ""
    except ValueError as error:
        raise ImproperlyConfigured(f"KANDEV_DATABASE_URL: {error}") from error
    wait_ms = int(lease_ttl * 1000 * 0.4)
    session = f"-c synchronous_commit=on -c idle_in_transaction_session_timeout={wait_ms} -c lock_timeout={wait_ms}"
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.strip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": port,
        "OPTIONS": {**_patience(wait_ms), **dict(parse_qsl(parts.query)), "options": session},
    }


def bound_statements(settings: dict[str, Any], seconds: int) -> None:
    """On the connections that this process makes from now on no statement takes longer; SQLite has no such bound."""
    if settings["ENGINE"].endswith("postgresql"):
        settings["OPTIONS"]["options"] += f" -c statement_timeout={seconds * 1000}"


def _patience(wait_ms: int) -> dict[str, int]:
    """A server that has gone without a word is missed within the time of a wait for a lock, not of a TCP connection."""
    seconds = max(wait_ms // 1000, 2)
    return {
        "connect_timeout": seconds,
        "tcp_user_timeout": seconds * 1000,
        "keepalives_idle": seconds,
        "keepalives_interval": 1,
        "keepalives_count": 3,
    }
