"""Rows of the ledger for tests."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django.utils import timezone

from sessions_app.models import Task, TurnUsage
from sessions_app.usage.models import local_day


def used(task: Task, days_ago: int = 0, **values: Any) -> TurnUsage:
    """Add a turn of a task that has ended some days ago."""
    ended_at = timezone.now() - timedelta(days=days_ago)
    row: TurnUsage = TurnUsage.objects.create(
        turn_id=uuid.uuid4(),
        team_id=task.team_id,
        task_id=task.id,
        **{
            "session_id": uuid.uuid4(),
            "agent_type": "demo",
            "ended_at": ended_at,
            "day": local_day(ended_at),
            **values,
        },
    )
    return row
