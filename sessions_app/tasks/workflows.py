"""What workflows start by themselves."""

from __future__ import annotations

from django.utils import timezone

from sessions_app.services import workflow_triggers


def start_due() -> int:
    """Start the runs that are due; how many were new."""
    return workflow_triggers.start_due(timezone.now())
