"""Runs that nobody asks for by hand: by the clock, and when a team has been idle.

Looked at once a minute by the worker. A slot of the clock, and one time of being idle, start one run at most, however
many look: it is the run's idempotency key. What was missed while nothing looked is made up for by one run.
A run has the rights of whoever confirmed the triggers, if nothing has changed since (``workflow_schedules``).
"""

from __future__ import annotations

import json
import logging
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from django.db import transaction
from django.db.models import Max

from sessions_app.models import Run, Workflow, WorkflowRun
from sessions_app.services import workflow_schedules
from sessions_app.services.errors import ChecksUnavailable, IdempotencyKeyReused, SessionsError
from sessions_app.services.workflow_starts import start_run_of
from sessions_app.services.workflow_texts import load_text
from sessions_app.workflows.triggers import Triggers, triggers_of

log = logging.getLogger(__name__)
KNOWN: Final = 256
"""Texts whose triggers are remembered."""
UNDER_WAY: Final = ("queued", "running")


@lru_cache(maxsize=KNOWN)
def _triggers(text: str, files: str) -> Triggers:
    return triggers_of(load_text(text, json.loads(files)).workflow)


def start_due(now: datetime) -> int:
    """Start every run that is due; how many were new."""
    rows = Workflow.objects.filter(triggers_enabled=True, is_valid=True, archived_at=None)
    return sum(_look_at(row, now) for row in rows.defer("confirmed").order_by("id"))


def _look_at(row: Workflow, now: datetime) -> bool:
    try:
        triggers = _triggers(row.text, json.dumps(row.files, sort_keys=True))
    except ChecksUnavailable as error:
        log.warning("workflow %s: its triggers are looked at again in a minute: %s", row.id, error.message)
        return False
    return _by_the_clock(row, triggers, now) or _when_idle(row, triggers, now)


def _by_the_clock(row: Workflow, triggers: Triggers, now: datetime) -> bool:
    """Start the run of the slot that is due, unless the one before is still under way; then wait for the next."""
    slot, begun = row.next_run_at, False
    if slot is not None and slot <= now and triggers.crons and not _is_under_way(row):
        begun = _start(row, "cron", slot)
    if slot is None or slot <= now:
        after = triggers.next_after(now)
        same = Workflow.objects.filter(id=row.id, next_run_at=slot, revision=row.revision, triggers_enabled=True)
        same.update(next_run_at=after)
    return begun


def _is_under_way(row: Workflow) -> bool:
    """Whether the clock's last run of it goes on; its own slot is asked for again after a crash all the same."""
    going_on = WorkflowRun.objects.filter(workflow=row, trigger="cron", state__in=UNDER_WAY)
    return going_on.exclude(idempotency_key=_key(row, "cron", row.next_run_at)).exists()


def _when_idle(row: Workflow, triggers: Triggers, now: datetime) -> bool:
    """Start it where nothing has gone on in its team for so long; once for each such time."""
    since = quiet_since(row) if triggers.idle is not None else None
    if triggers.idle is None or since is None or now - since < triggers.idle:
        return False
    return _start(row, "idle", since)


def quiet_since(row: Workflow) -> datetime | None:
    """When the last run or turn in its team ended, or itself was changed; None: something goes on."""
    runs = WorkflowRun.objects.filter(team=row.team_id)
    turns = Run.objects.filter(session__task__team=row.team_id)
    if runs.filter(state__in=UNDER_WAY).exists() or turns.filter(ended_at=None).exists():
        return None
    ends = (rows.aggregate(at=Max("ended_at"))["at"] for rows in (runs, turns))
    latest: datetime = max((row.updated_at, *(at for at in ends if at is not None)))
    return latest


def _key(row: Workflow, trigger: str, at: datetime | None) -> str:
    return f"{trigger}:{row.id}:{at.isoformat() if at else ''}"


def _start(row: Workflow, trigger: str, at: datetime) -> bool:
    """One run with the rights of whoever confirmed the triggers; what keeps it from starting is told on its page."""
    inputs: dict[str, Any] = {"type": trigger, "timestamp": at.isoformat(), "text": "", "params": {}}
    key = _key(row, trigger, at)
    try:
        load_text(row.text, row.files)  # it can take a while, and is then at hand within the transaction
    except ChecksUnavailable as error:
        log.warning("workflow %s: its %s trigger waits: %s", row.id, trigger, error.message)
        return False
    with transaction.atomic():
        # The row stays locked until the run is there, so that nobody changes it between the check and the run.
        now = workflow_schedules.locked(row)
        if not now.triggers_enabled or now.archived_at is not None or now.revision != row.revision:
            return False
        if not workflow_schedules.may_start_now(now):
            log.warning("workflow %s: its triggers are paused: %s", row.id, now.triggers_paused)
            return False
        try:
            _, is_new = start_run_of(now.triggers_enabled_by, now, inputs, trigger=trigger, key=key)
        except IdempotencyKeyReused:
            return False  # it has had its run, and was changed since
        except SessionsError as error:
            log.warning("workflow %s: its %s trigger could not start it: %s", row.id, trigger, error.message)
            return _tell(now, error.message)
        _tell(now, "")
    return is_new


def _tell(row: Workflow, trouble: str) -> bool:
    if row.trigger_error != trouble:
        Workflow.objects.filter(id=row.id).update(trigger_error=trouble)
    return False
