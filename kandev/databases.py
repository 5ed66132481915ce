"""The data directory with its secret key, and the database settings from one URL."""

from __future__ import annotations

import os
import pwd
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured


def prepare_data_directory(directory: Path) -> Path:
    """Make ``directory`` if need be and keep others out (0700); ImproperlyConfigured if that cannot be.

    One of another user is refused, also to root: what root makes there its owner could not use afterwards.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
        mode = found.st_mode
        if mode & stat.S_ISVTX:
            raise ImproperlyConfigured(
                f"KANDEV_DATA_DIR={directory} is shared with others: name a directory of its own"
            )
        if found.st_uid != os.geteuid():
            raise ImproperlyConfigured(
                f"KANDEV_DATA_DIR={directory} belongs to {_user_name(found.st_uid)}, and this runs as "
                f"{_user_name(os.geteuid())}: run it as the owner, or name a directory of its own"
            )
        if mode & 0o077:
            directory.chmod(0o700)
        if not os.access(directory, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
            raise ImproperlyConfigured(f"KANDEV_DATA_DIR={directory} cannot be written: it is read-only")
    except OSError as error:
        raise ImproperlyConfigured(f"KANDEV_DATA_DIR={directory} cannot be used: {error.strerror}") from error
    return directory


def _user_name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def restrict_database_files(path: Path) -> None:
    """Close an SQLite file to others (0600), and what lies beside it.

    A new one is made with that mode, for ``manage.py`` sets the umask. It is not made here: a command that refuses a
    missing database must leave nothing behind. What cannot be done here is said by whoever connects.
    """
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}-journal"):
        file = path.with_name(name)
        with suppress(OSError):
            if file.stat().st_mode & 0o077:
                file.chmod(0o600)


def load_secret_key(directory: Path) -> str:
    """The installation's secret key, drawn at the first start; two first starts at once agree on one.

    Raises ImproperlyConfigured where it can be neither read nor made.
    """
    path = directory / "secret-key"
    try:
        if not path.exists():
            _create_key_file(path, secrets.token_urlsafe(50))
        return path.read_text().strip()
    except OSError as error:
        raise ImproperlyConfigured(f"the secret key {path} cannot be used: {error.strerror}") from error


def _create_key_file(path: Path, key: str) -> None:
    """Put ``key`` at ``path`` unless somebody else was first; readers never see half a key."""
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600
    with os.fdopen(descriptor, "w") as stream:
        stream.write(key + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        Path(draft).unlink()


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
    try:
        parts = urlsplit(url)
        if parts.scheme == "sqlite" and parts.path.strip("/"):
            return _sqlite(Path(unquote(parts.path)), data_dir, lease_ttl)
        if parts.scheme in {"postgres", "postgresql"} and parts.path.strip("/"):
            return _postgres(parts, lease_ttl)
    except ValueError:
        # The cause is left out: an unquoted "/" in the password makes its first half the port that the cause quotes.
        raise ImproperlyConfigured(
            "KANDEV_DATABASE_URL has an invalid host or port; percent-encode special characters in its password"
        ) from None
    raise ImproperlyConfigured(
        "KANDEV_DATABASE_URL must look like sqlite:///FILE or postgres://USER:PASSWORD@HOST/NAME"
    )


def _sqlite(path: Path, data_dir: Path, lease_ttl: float) -> dict[str, Any]:
    restrict_database_files(path)
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


def _postgres(parts: SplitResult, lease_ttl: float) -> dict[str, Any]:
    wait_ms = int(lease_ttl * 1000 * 0.4)
    session = f"-c synchronous_commit=on -c idle_in_transaction_session_timeout={wait_ms} -c lock_timeout={wait_ms}"
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.strip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": parts.port or "",
        "OPTIONS": {**_tcp_timeout_options(wait_ms), **dict(parse_qsl(parts.query)), "options": session},
    }


def limit_statement_time(settings: dict[str, Any], seconds: int) -> None:
    """On the connections that this process makes from now on no statement takes longer; SQLite has no such bound."""
    if settings["ENGINE"].endswith("postgresql"):
        settings["OPTIONS"]["options"] += f" -c statement_timeout={seconds * 1000}"


def _tcp_timeout_options(wait_ms: int) -> dict[str, int]:
    """A server that has gone without a word is missed within the time of a wait for a lock, not of a TCP connection."""
    seconds = max(wait_ms // 1000, 2)
    return {
        "connect_timeout": seconds,
        "tcp_user_timeout": seconds * 1000,
        "keepalives_idle": seconds,
        "keepalives_interval": 1,
        "keepalives_count": 3,
    }
