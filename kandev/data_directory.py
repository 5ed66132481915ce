"""The data directory: private to its owner, with a secret key of its own."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured


def open_data_directory(directory: Path) -> Path:
    """Make ``directory`` if need be and keep others out (0700); ImproperlyConfigured if that cannot be."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = directory.stat().st_mode
        if mode & stat.S_ISVTX:
            raise ImproperlyConfigured(
                f"KANDEV_DATA_DIR={directory} is shared with others: name a directory of its own"
            )
        if mode & 0o077:
            directory.chmod(0o700)
    except OSError as error:
        raise ImproperlyConfigured(f"KANDEV_DATA_DIR={directory} cannot be used: {error.strerror}") from error
    return directory


def load_secret_key(directory: Path) -> str:
    """The installation's secret key, drawn at the first start; two first starts at once agree on one."""
    path = directory / "secret-key"
    if not path.exists():
        _offer(path, secrets.token_urlsafe(50))
    return path.read_text().strip()


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
