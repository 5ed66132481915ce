"""The data directory: private to its owner, with a secret key of its own."""

from __future__ import annotations

import os
import pwd
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured


def open_data_directory(directory: Path) -> Path:
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
                f"KANDEV_DATA_DIR={directory} belongs to {_name_of(found.st_uid)}, and this runs as "
                f"{_name_of(os.geteuid())}: run it as the owner, or name a directory of its own"
            )
        if mode & 0o077:
            directory.chmod(0o700)
        if not os.access(directory, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
            raise ImproperlyConfigured(f"KANDEV_DATA_DIR={directory} cannot be written: it is read-only")
    except OSError as error:
        raise ImproperlyConfigured(f"KANDEV_DATA_DIR={directory} cannot be used: {error.strerror}") from error
    return directory


def _name_of(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def close_database(path: Path) -> None:
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
            _offer(path, secrets.token_urlsafe(50))
        return path.read_text().strip()
    except OSError as error:
        raise ImproperlyConfigured(f"the secret key {path} cannot be used: {error.strerror}") from error


def _offer(path: Path, key: str) -> None:
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
