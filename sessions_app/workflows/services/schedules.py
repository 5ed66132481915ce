"""Start scheduled runs: by cron, or when a team is idle."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

from django.conf import settings
from django.db import OperationalError, transaction
from django.db.models import Max
from django.db.models.fields.json import KeyTextTransform, KeyTransform

from executors_app.machine import crash_points
from sessions_app.kernel.services.errors import ChecksUnavailable, IdempotencyKeyReused, SessionsError
from sessions_app.kernel.services.idempotency import IdempotencyMark, mark_request
from sessions_app.models import Turn
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.nodes.trigger import (
    LATE_AFTER,
    MissedOutcome,
    WorkflowTriggers,
    find_due_slots,
    find_triggers,
)
from sessions_app.workflows.services import trigger_settings
from sessions_app.workflows.services.loading import load_text
from sessions_app.workflows.services.missed_slots import missed_columns
from sessions_app.workflows.services.runs import start_saved_run
from sessions_app.workflows.services.trigger_confirmation import parse_triggers

log = logging.getLogger(__name__)
TEAM_SECONDS: Final = 20.0
"""Seconds that one pass spends on the workflows of a team; those that are left follow in the next pass."""
ACTIVE_STATES: Final = ("queued", "running")


def start_due_runs(now: datetime) -> int:
    """Start every scheduled run that is due; return how many were started.

    Loading a text can take half a minute, and a team can have any number of workflows: each team has a share of the
    pass, and the workflow that has been due for longest comes first.
    """
    rows = Workflow.objects.filter(triggers_enabled=True, is_valid=True, archived_at=None)
    # Without the texts, which can have megabytes: only those that are due are read.
    rows = rows.defer("text", "files", "confirmed").annotate(
        confirmed_triggers=KeyTextTransform("triggers", KeyTransform("parts", "confirmed"))
    )
    spent: defaultdict[int, float] = defaultdict(float)
    started = 0
    for row in rows.order_by("next_run_at", "id"):
        if spent[row.team_id] > TEAM_SECONDS:
            log.info("workflow %s: its triggers wait, because others of its team took long", row.id)
            continue
        began = monotonic()
        started += _start_or_log(row, now)
        spent[row.team_id] += monotonic() - began
    return started


def _start_or_log(row: Workflow, now: datetime) -> bool:
    """Start the run of a workflow if it is due. If that fails, the others still get theirs."""
    try:
        return _start_if_due(row, now)
    except ChecksUnavailable as error:
        # Its slot stays due: the next pass tries again.
        log.warning("workflow %s: its triggers wait, trying again in a minute: %s", row.id, error.message)
    except OperationalError:
        raise  # the database is not reachable
    except Exception as error:
        log.exception("workflow %s: its triggers could not be handled", row.id)
        reason = f"An unexpected error occurred ({type(error).__name__})."
        _store_trigger_error(row, f"{reason} It is tried again each minute; the server log has the details.")
    return False


def _start_if_due(row: Workflow, now: datetime) -> bool:
    """Start the run of a workflow if it is due. Raises ChecksUnavailable."""
    triggers = _triggers_of(row)
    return _start_by_cron(row, triggers, now) or _start_when_idle(row, triggers, now)


def _triggers_of(row: Workflow) -> WorkflowTriggers:
    """Return the triggers as they were confirmed, or from the text if they cannot be read.

    The confirmed ones are those of the text: any change of it pauses the triggers. Raises ChecksUnavailable.
    """
    confirmed = getattr(row, "confirmed_triggers", None)
    if isinstance(confirmed, str):
        triggers = parse_triggers(confirmed)
        if triggers:
            return triggers
    return find_triggers(load_text(row.text, row.files).workflow)


def _start_by_cron(row: Workflow, triggers: WorkflowTriggers, now: datetime) -> bool:
    """Start one run for all slots that are due, unless the previous run is still active; then move to the next slot.

    The run, the next slot and what is told of missed slots are one transaction: after a crash all of it is there, or
    the slots are still due.
    """
    due, following = row.next_run_at, triggers.next_after(now)
    if due is not None and due > now:
        if _is_beyond_clocks(due, triggers, now):
            _move_on(row, {"next_run_at": following})
        return False
    if due is None or not triggers.crons:
        _move_on(row, {"next_run_at": following})
        return False
    slots = find_due_slots(triggers, due, now)
    catches_up = settings.KANDEV_MISSED_SCHEDULES == "once"
    slot = slots.to_start(catches_up=catches_up)
    moved = {"next_run_at": following, **missed_columns(row, slots.first, slots.last_missed, slots.missed)}
    if slots.missed:
        moved["missed_outcome"] = MissedOutcome.MADE_UP if catches_up else MissedOutcome.SKIPPED
    if slot is None:
        _move_on(row, moved)
        return False
    if _is_cron_run_active(row, slot):
        _move_on(row, _without_run(moved, MissedOutcome.RUN_ACTIVE))
        return False
    return _start_triggered_run(row, "cron", slot, moved)


def _without_run(moved: Mapping[str, Any], outcome: MissedOutcome) -> Mapping[str, Any]:
    """Return the columns with the reason why no run makes up for missed slots, if one was to do that."""
    if moved.get("missed_outcome") == MissedOutcome.MADE_UP:
        return {**moved, "missed_outcome": outcome}
    return moved


def _is_beyond_clocks(due: datetime, triggers: WorkflowTriggers, now: datetime) -> bool:
    """Whether the clock was set back since the next slot was computed, by more than workers' clocks may differ.

    Otherwise nothing would start until that time has come again. Slots that have their run get no other one, by its
    idempotency key.
    """
    latest = triggers.next_after(now + LATE_AFTER)
    return latest is not None and due > latest


def _move_on(row: Workflow, moved: Mapping[str, Any]) -> None:
    """Write the next slot, and what became of missed ones, unless somebody else has changed the schedule."""
    same = Workflow.objects.filter(id=row.id, next_run_at=row.next_run_at, revision=row.revision, triggers_enabled=True)
    if moved:
        same.update(**moved)


def _is_cron_run_active(row: Workflow, slot: datetime) -> bool:
    """Return whether an earlier scheduled run is still active.

    The run of the due slot itself does not count: after a crash, the slot is asked for again.
    """
    active = WorkflowRun.objects.filter(workflow=row, trigger="cron", state__in=ACTIVE_STATES)
    return active.exclude(idempotency_key=_idempotency_key(row, "cron", slot)).exists()


def _start_when_idle(row: Workflow, triggers: WorkflowTriggers, now: datetime) -> bool:
    """Start a run if the team has been idle long enough; once for each idle period."""
    if triggers.idle is None:
        return False
    since = team_idle_since(row)
    if since is None or now - since < triggers.idle:
        return False
    return _start_triggered_run(row, "idle", since)


def team_idle_since(row: Workflow) -> datetime | None:
    """Return since when the team has been idle: the end of its last run or turn, or the last change of the workflow.

    None while a run or turn is active.
    """
    runs = WorkflowRun.objects.filter(team=row.team_id)
    turns = Turn.objects.filter(session__task__team=row.team_id)
    if runs.filter(state__in=ACTIVE_STATES).exists() or turns.filter(ended_at=None).exists():
        return None
    latest: datetime = row.updated_at
    for rows in (runs, turns):
        ended_at = rows.aggregate(at=Max("ended_at"))["at"]
        if ended_at is not None:
            latest = max(latest, ended_at)
    return latest


def _idempotency_key(row: Workflow, trigger: str, at: datetime | None) -> str:
    slot = at.isoformat() if at else ""
    return f"{trigger}:{row.id}:{slot}"


def _start_triggered_run(
    row: Workflow, trigger: str, at: datetime, moved: Mapping[str, Any] = MappingProxyType({})
) -> bool:
    """Start a run with the rights of the user who confirmed the triggers; return whether it is new.

    ``moved``: the columns of the schedule that are written with it, for a cron trigger. What prevents the start is
    stored, and shown on the page of the workflow. Raises ChecksUnavailable.
    """
    inputs: dict[str, Any] = {"type": trigger, "timestamp": at.isoformat(), "text": "", "params": {}}
    key = _idempotency_key(row, trigger, at)
    load_text(row.text, row.files)  # it can take a while; the transaction below then finds it in the cache
    # The revision stands for text and files, which may have megabytes; it is compared when the row is locked.
    mark = mark_request(key, {"workflow": row.id, "revision": row.revision})
    return _start_locked(row, trigger, inputs, mark, moved)


def _start_locked(
    row: Workflow, trigger: str, inputs: Mapping[str, Any], mark: IdempotencyMark, moved: Mapping[str, Any]
) -> bool:
    with transaction.atomic():
        # The row stays locked until the run exists, so that nobody can change it between the check and the run.
        locked = trigger_settings.lock_workflow(row)
        if not locked.triggers_enabled or locked.archived_at is not None or locked.revision != row.revision:
            return False
        if moved and locked.next_run_at != row.next_run_at:
            return False  # another worker has started the slot
        enabled_by = locked.triggers_enabled_by
        if not trigger_settings.may_trigger_now(locked) or enabled_by is None:
            log.warning("workflow %s: its triggers are paused: %s", row.id, locked.triggers_paused)
            return False
        try:
            run, is_new = start_saved_run(enabled_by, locked, inputs, trigger=trigger, mark=mark)
        except IdempotencyKeyReused:
            # The slot has its run, and the workflow was changed since.
            run = WorkflowRun.objects.get(workflow=row, idempotency_key=mark["idempotency_key"])
            is_new = False
        except ChecksUnavailable:
            raise  # the next pass tries again
        except SessionsError as error:
            log.warning("workflow %s: its %s trigger could not start it: %s", row.id, trigger, error.message)
            _store_trigger_error(locked, error.message)
            _move_on(row, _without_run(moved, MissedOutcome.NOT_STARTED))
            return False
        _store_trigger_error(locked, "")
        crash_points.reached("schedule.run_written")
        if moved.get("missed_outcome") == MissedOutcome.MADE_UP:
            moved = {**moved, "missed_run": run}
        _move_on(row, moved)
        crash_points.reached("schedule.slot_moved")
    crash_points.reached("schedule.run_committed")
    return is_new


def _store_trigger_error(row: Workflow, message: str) -> None:
    if row.trigger_error != message:
        Workflow.objects.filter(id=row.id).update(trigger_error=message)
