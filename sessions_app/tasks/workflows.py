"""Start scheduled workflows."""

from __future__ import annotations

from django.utils import timezone

from sessions_app.workflows.services import runs


def start_due() -> int:
    """Start the runs that are due; return the number of new ones."""
    return runs.start_due_runs(timezone.now())
