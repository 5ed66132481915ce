"""What keeps the triggers of a workflow from starting it: the missing worker, and what prevented the last start."""

from __future__ import annotations

from django.conf import settings

from sessions_app.hosts.services import worker_down_since
from sessions_app.workflows.models import Workflow


def missing_worker_error() -> str:
    """Say that no worker runs, since when, and what to do; empty if one runs or none has ever reported. One query."""
    since = worker_down_since()
    if since is None:
        return ""
    catch_up = "Those that were missed are then skipped."
    if settings.KANDEV_MISSED_SCHEDULES == "once":
        catch_up = "One run then makes up for those that were missed."
    return (
        f"No worker is running; the last one reported on {since:%Y-%m-%d at %H:%M} UTC. Scheduled runs start again "
        f"once one runs: start manage.py qcluster, or ask an administrator to. {catch_up}"
    )


def has_active_triggers(row: Workflow) -> bool:
    """Whether a worker starts runs of the workflow by itself."""
    return row.triggers_enabled and row.archived_at is None


def describe_trigger_error(row: Workflow, missing_worker: str) -> str:
    """Return all that keeps the triggers from starting the workflow. ``missing_worker``: ``missing_worker_error()``."""
    if not has_active_triggers(row):
        return row.trigger_error
    return " ".join(filter(None, (missing_worker, row.trigger_error)))
