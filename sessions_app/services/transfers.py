"""Whether a session's newest snapshot has arrived in the control plane's archive, as status and pages tell it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import timezone

from executors_app.models import ExecutorRunning
from executors_app.plugins import runtimes
from executors_app.runtimes import SupportsPush

OVERDUE_AFTER: Final = timedelta(seconds=30)
"""A transfer usually takes seconds; people are told of one that takes longer, or that has failed."""


def push_runtimes() -> list[str]:
    """Names of the runtimes whose workspaces have a repository of their own."""
    return [name for name, place in runtimes().items() if isinstance(place, SupportsPush)]


def is_due(execution: ExecutorRunning) -> bool:
    """Return True while the newest snapshot that was announced has not arrived."""
    return execution.snapshot_announced != execution.snapshot_arrived


def is_overdue(execution: ExecutorRunning, now: datetime) -> bool:
    """Return True if people should be told: the transfer has failed, or has taken ``OVERDUE_AFTER``."""
    since = execution.snapshot_due_since
    return is_due(execution) and bool(
        execution.snapshot_error_code or (since is not None and now - since > OVERDUE_AFTER)
    )


def transfer_json(execution: ExecutorRunning | None) -> dict[str, Any] | None:
    """Return what has not arrived, since when, and the last error; None if everything has."""
    if execution is None or not is_due(execution):
        return None
    if not isinstance(runtimes().get(execution.runtime), SupportsPush):
        return None  # its work is in the team's repository anyway
    since = execution.snapshot_due_since
    return {
        "commit": execution.snapshot_announced,
        "since": since.isoformat() if since else None,
        "overdue": is_overdue(execution, timezone.now()),
        "error_code": execution.snapshot_error_code,
        "error_message": execution.snapshot_error,
    }
