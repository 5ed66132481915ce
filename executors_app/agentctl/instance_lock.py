"""One agentctl per state directory: a lock that ends with its process and tells who holds it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

_POLL: Final = 0.02
_LIMIT: Final = 65536


class Held(Exception):
    """Another agentctl has the directory; ``ready`` is its ready info, None if it never got ready."""

    def __init__(self, ready: dict[str, Any] | None):
        super().__init__("another agentctl has this state directory")
        self.ready = ready


class InstanceLock:
    """Taken when made, for as long as the process lives; raises Held after at most ``patience`` seconds."""

    def __init__(self, state_dir: Path, patience: float = 10.0):
        # Not inheritable: a child that outlived us would keep the directory locked.
        self._fd = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        until = time.monotonic() + patience
        while not self._taken():
            ready = self._told()
            if ready is not None or time.monotonic() > until:
                os.close(self._fd)
                raise Held(ready)
            time.sleep(_POLL)
        os.ftruncate(self._fd, 0)

    def tell(self, ready: Mapping[str, Any]) -> None:
        """Leave the ready info for whoever comes second."""
        os.pwrite(self._fd, orjson.dumps(ready), 0)

    def release(self) -> None:
        """Give the directory back."""
        os.ftruncate(self._fd, 0)
        os.close(self._fd)

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _told(self) -> dict[str, Any] | None:
        try:
            ready = orjson.loads(os.pread(self._fd, _LIMIT, 0))
        except ValueError:
            return None
        return ready if isinstance(ready, dict) else None
