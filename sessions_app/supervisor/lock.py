"""One supervisor at a time on an embedded database: a lock file that dies with its process (rule 6)."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from django.conf import settings
from django.db import connection

Holder = Literal["supervise", "sweep", "run"]


def is_shared() -> bool:
    """Whether several supervisors may have this database at once."""
    return connection.vendor == "postgresql"


class LockUnusable(Exception):
    """The lock file cannot be opened: it is another user's, or its disk is read-only."""


class SupervisorLock:
    """The right to supervise this database; PostgreSQL needs none, its leases are enough."""

    def __init__(self, holder: Holder):
        self.holder = holder
        self.path = Path(settings.KANDEV_DATA_DIR) / "supervisor.lock"
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Take it without waiting; True when it is ours. Raises LockUnusable."""
        if is_shared():
            return True
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LockUnusable(f"{self.path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"holder": self.holder, "pid": os.getpid()}).encode(), 0)
        self._descriptor = descriptor
        return True

    def held_by(self) -> str:
        """Who holds it, as far as the file tells."""
        try:
            told = json.loads(self.path.read_text() or "{}")
        except (OSError, ValueError):
            return ""
        return str(told.get("holder", ""))

    def release(self) -> None:
        """Give it back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
