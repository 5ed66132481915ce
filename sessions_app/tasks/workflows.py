"""What workflows start by themselves."""

from __future__ import annotations

from django.utils import timezone

from sessions_app.workflows.services import runs


def start_due() -> int:
    """Start the runs that are due; how many were new."""
    return runs.start_due_runs(timezone.now())
