"""Running single chores, and sessions that ended long ago."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from sessions_app.maintenance.chore_run import ChoreRun
from sessions_app.maintenance.chores import run_chores
from sessions_app.models import TaskSession
from tests.supervisor.rows import change, execution_of, running_session

LONG_AGO = timezone.now() - timedelta(days=400)


def run_chore(chore: str, *, dry_run: bool = False) -> ChoreRun:
    """Run one chore; return its run."""
    (work,) = run_chores([chore], dry_run=dry_run)
    return work


def closed_session(prompt: str = "", **fields: Any) -> TaskSession:
    """Return a session that was completed long ago and has no process."""
    session = running_session(prompt)
    session.intents.update(done_at=LONG_AGO)
    change(execution_of(session), status="stopped", owner="", updated_at=LONG_AGO)
    return change(session, state="COMPLETED", launch_id="", updated_at=LONG_AGO, **fields)


def ended_session(prompt: str = "", **fields: Any) -> TaskSession:
    """Return a session that was stopped long ago and can be resumed; its task is open."""
    session = closed_session(prompt)
    return change(session, state="WAITING_FOR_INPUT", desired_state="stopped", updated_at=LONG_AGO, **fields)
