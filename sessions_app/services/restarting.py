"""Restarting the control plane on purpose: an order that the web leaves in a file, and ``serve`` carries out.

Only where ``manage.py serve`` keeps the processes, on this machine's own address, with the embedded database: there
it shows what a restart does, which is nothing to an agent. The files lie in the data directory, private to its owner.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.utils import timezone

from executors_app.agentctl import identity

KEEPER: Final = "serve.json"
ORDER: Final = "restart-wanted.json"
DONE: Final = "restarted.json"
PAUSE: Final = 0.7
"""Seconds between an order and the kill, so that whoever ordered is answered."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """The last restart that somebody ordered."""

    by: str
    killed_at: datetime
    killed: Sequence[str]
    """Names of the processes that were killed."""


def may_restart(user: Any) -> bool:
    """Whether ``user`` may order a restart here: staff, and this process is one that ``serve`` keeps."""
    return bool(user.is_staff and settings.KANDEV_EMBEDDED and not settings.KANDEV_PUBLIC and _is_kept())


def _is_kept() -> bool:
    told = _read(KEEPER)
    try:
        keeper = identity.ProcessIdentity.from_json(told.get("keeper", {}))
    except ValueError:
        return False
    return bool(told.get("loopback")) and keeper.pid == os.getppid() and identity.is_alive(keeper)


def order_restart(user: Any) -> None:
    """Leave the order; the caller has checked ``may_restart``."""
    _write(ORDER, {"by": user.get_username()})


def is_ordered() -> bool:
    """Whether an order waits to be carried out."""
    return _path(ORDER).exists()


def last_ordered() -> Restarted | None:
    """The last restart of this kind; None before the first."""
    told = _read(DONE)
    try:
        return Restarted(
            str(told["by"]), datetime.fromisoformat(told["killed_at"]), [str(one) for one in told["killed"]]
        )
    except (KeyError, TypeError, ValueError):
        return None


# --- for the keeper ---


class Orders:
    """What ``serve`` does about it."""

    def __init__(self, *, loopback: bool) -> None:
        _path(ORDER).unlink(missing_ok=True)  # of a server that is no more
        _write(KEEPER, {"keeper": identity.of_self().to_json(), "loopback": loopback})
        self._seen_at: float | None = None

    def due(self, now: float) -> bool:
        """Whether the processes are to be killed at ``now``, in monotonic seconds; until ``done`` is said."""
        if not is_ordered():
            self._seen_at = None
        elif self._seen_at is None:
            self._seen_at = now
        return self._seen_at is not None and now - self._seen_at >= PAUSE

    def done(self, killed: Sequence[str]) -> None:
        """They were killed."""
        by = _read(ORDER).get("by", "")
        _write(DONE, {"by": by, "killed_at": timezone.now().isoformat(), "killed": list(killed)})
        _path(ORDER).unlink(missing_ok=True)
        self._seen_at = None


def _path(name: str) -> Path:
    return Path(settings.KANDEV_DATA_DIR) / name


def _read(name: str) -> dict[str, Any]:
    try:
        told = json.loads(_path(name).read_text())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _write(name: str, told: dict[str, Any]) -> None:
    """Wholly there or not at all, and nobody else's to read."""
    path = _path(name)
    draft = path.with_name(f".{name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        json.dump(told, stream)
    draft.replace(path)
