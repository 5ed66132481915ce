"""The data directory with its secret key, and the settings of the database and of Redis, each from one URL.

Redis carries wake-ups and rate limits between hosts; losing it loses no data.
"""

from __future__ import annotations

import os
import pwd
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

EMBEDDED_NAME = "kandev.sqlite3"
SQLITE_PRAGMAS = (
    "PRAGMA journal_mode=WAL;PRAGMA synchronous=FULL;PRAGMA mmap_size=134217728;"
    "PRAGMA journal_size_limit=27103364;PRAGMA cache_size=-20000;"
)
# The timeouts are short, so that a Redis that is down or hangs delays a request by at most a second.
_REDIS_OPTIONS: Final[dict[str, Any]] = {
    "socket_connect_timeout": 1.0,
    "socket_timeout": 1.0,
    "socket_keepalive": True,
    "health_check_interval": 10,  # notices connections that broke silently
}
_REDIS_PREFIX: Final = "kandev"


def prepare_data_directory(directory: Path) -> Path:
    """Create ``directory`` if it is missing and make it private (0700). Raises ImproperlyConfigured.

    A directory of another user is refused even to root: its owner could not use the files that root creates there.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
        mode = found.st_mode
        if mode & stat.S_ISVTX:
            raise ImproperlyConfigured(
                f"KANDEV_DATA_DIR={directory} is shared with other users: choose a directory that only Kandev uses"
            )
        if found.st_uid != os.geteuid():
            raise ImproperlyConfigured(
                f"KANDEV_DATA_DIR={directory} belongs to {_user_name(found.st_uid)}, but this process runs as "
                f"{_user_name(os.geteuid())}: run it as the owner, or choose another directory"
            )
        if mode & 0o077:
            directory.chmod(0o700)
        if not os.access(directory, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
            raise ImproperlyConfigured(
                f"KANDEV_DATA_DIR={directory} is not writable: make it writable, or choose another directory"
            )
    except OSError as error:
        raise ImproperlyConfigured(f"KANDEV_DATA_DIR={directory} cannot be used: {error.strerror}") from error
    return directory


def _user_name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def restrict_database_files(path: Path) -> None:
    """Make an SQLite file and its companions private (0600).

    A new file gets that mode from the umask that ``manage.py`` sets. It is not created here, because a command that
    refuses a missing database must leave nothing behind. Errors are ignored: connecting reports them.
    """
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}-journal"):
        file = path.with_name(name)
        with suppress(OSError):
            if file.stat().st_mode & 0o077:
                file.chmod(0o600)


def load_secret_key(directory: Path) -> str:
    """Return the installation's secret key, which the first start generates.

    Concurrent first starts agree on one key. Raises ImproperlyConfigured if it can be neither read nor created.
    """
    path = directory / "secret-key"
    try:
        if not path.exists():
            _create_key_file(path, secrets.token_urlsafe(50))
        return path.read_text().strip()
    except OSError as error:
        raise ImproperlyConfigured(f"the secret key {path} cannot be used: {error.strerror}") from error


def _create_key_file(path: Path, key: str) -> None:
    """Write ``key`` to ``path`` unless another process was first; readers never see a partial key."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600
    with os.fdopen(descriptor, "w") as stream:
        stream.write(key + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        Path(temporary).unlink()


def database_settings(url: str, data_dir: Path, lease_ttl: float) -> dict[str, Any]:
    """Return ``DATABASES["default"]`` for a ``sqlite:``, ``postgres:`` or ``postgresql:`` URL, or the embedded file.

    Waits for locks end well within a lease of ``lease_ttl`` seconds, so that a waiting supervisor can still renew it.
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
            # Taking the write lock at BEGIN avoids a lock upgrade that could fail in the middle of a transaction.
            "transaction_mode": "IMMEDIATE",
            "init_command": SQLITE_PRAGMAS,
        },
        # A file, so that threads and child processes of the tests can open it too.
        "TEST": {"NAME": data_dir / "test.sqlite3"},
    }


def _postgres(parts: SplitResult, lease_ttl: float) -> dict[str, Any]:
    wait_ms = int(lease_ttl * 1000 * 0.4)
    options = _tcp_timeout_options(wait_ms) | dict(parse_qsl(parts.query))
    options["options"] = " ".join(f"-c {name}={value}" for name, value in _session_settings(wait_ms).items())
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.strip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": parts.port or "",
        "OPTIONS": options,
    }


def _session_settings(wait_ms: int) -> dict[str, str | int]:
    """Return the settings of each session on the server.

    Its TCP settings are for the loss of a host, which closes no connection: until the server notices, after hours by
    default, the session of a lost host keeps its locks, such as the one that elects the exporter.
    """
    tcp = _tcp_timeout_options(wait_ms)
    return {
        "synchronous_commit": "on",
        "idle_in_transaction_session_timeout": wait_ms,
        "lock_timeout": wait_ms,
        "tcp_user_timeout": tcp["tcp_user_timeout"],
        "tcp_keepalives_idle": tcp["keepalives_idle"],
        "tcp_keepalives_interval": tcp["keepalives_interval"],
        "tcp_keepalives_count": tcp["keepalives_count"],
    }


def limit_statement_time(settings: dict[str, Any], seconds: int) -> None:
    """Limit statements on new connections of this process to ``seconds``; SQLite has no such limit."""
    if settings["ENGINE"].endswith("postgresql"):
        settings["OPTIONS"]["options"] += f" -c statement_timeout={seconds * 1000}"


def _tcp_timeout_options(wait_ms: int) -> dict[str, int]:
    """Return TCP options with which a vanished server is noticed within a lock wait instead of a TCP timeout."""
    seconds = max(wait_ms // 1000, 2)
    return {
        "connect_timeout": seconds,
        "tcp_user_timeout": seconds * 1000,
        "keepalives_idle": seconds,
        "keepalives_interval": 1,
        "keepalives_count": 3,
    }


def channel_layer_settings(url: str) -> dict[str, Any]:
    """Return ``CHANNEL_LAYERS``: wake-ups between processes, or within one process without Redis.

    Uses the publish/subscribe layer instead of the one with queues: a wake-up without a receiver must not be stored,
    and one command reaches many receivers.
    """
    if not url:
        return {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    from redis.asyncio.retry import Retry  # noqa: PLC0415  (imported only with Redis, because it is slow)
    from redis.backoff import NoBackoff  # noqa: PLC0415

    host = {"address": url, "retry": Retry(NoBackoff(), 0)} | _REDIS_OPTIONS
    return {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [host], "prefix": _REDIS_PREFIX},
        }
    }


def cache_settings(url: str) -> dict[str, Any]:
    """Return ``CACHES``: rate-limit counters, shared by all processes with Redis, else one set for each process."""
    if not url:
        return {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    from redis.backoff import NoBackoff  # noqa: PLC0415
    from redis.retry import Retry  # noqa: PLC0415

    options = {"retry": Retry(NoBackoff(), 0)} | _REDIS_OPTIONS
    return {
        "default": {
            "BACKEND": "kandev.redis_cache.FallbackRedisCache",
            "LOCATION": url,
            "KEY_PREFIX": _REDIS_PREFIX,
            "OPTIONS": options,
        }
    }
