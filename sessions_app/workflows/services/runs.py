"""List the workflows and runs a user may see, and start runs of saved workflows.

On request, by cron or by idle trigger.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from django.db import transaction
from django.db.models import Max, OuterRef, QuerySet, Subquery

from sessions_app.models import Run, Task
from sessions_app.services.errors import ChecksUnavailable, Conflict, IdempotencyKeyReused, SessionsError
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.nodes.trigger import WorkflowTriggers, find_triggers
from sessions_app.workflows.services import trigger_settings
from sessions_app.workflows.services.loading import load_text
from sessions_app.workflows.services.workflows import start_run


def visible_workflows(user: Any) -> QuerySet[Workflow]:
    """The workflows of the user's teams, each with its ``last_run_id``, ``last_run_state`` and ``last_run_at``."""
    runs = WorkflowRun.objects.filter(workflow=OuterRef("pk")).order_by("-created_at")
    found: QuerySet[Workflow] = Workflow.objects.visible_to(user).select_related("team", "repository")
    return found.defer("confirmed").annotate(
        last_run_id=Subquery(runs.values("id")[:1]),
        last_run_state=Subquery(runs.values("state")[:1]),
        last_run_at=Subquery(runs.values("created_at")[:1]),
    )


def visible_runs(user: Any) -> QuerySet[WorkflowRun]:
    """The runs of the user's teams, newest first, without their texts."""
    found: QuerySet[WorkflowRun] = WorkflowRun.objects.visible_to(user).defer("text", "files", "inputs", "outputs")
    return found.select_related("team")


def run_of_task(task: Task) -> WorkflowRun | None:
    """The run that a task is for, by its id and name; None for a task of somebody's."""
    return WorkflowRun.objects.filter(task=task).only("id", "name").first()


def start_saved_run(
    user: Any,
    row: Workflow,
    inputs: Mapping[str, Any],
    *,
    trigger: str = "manual",
    key: str = "",
    revision: int | None = None,
) -> tuple[WorkflowRun, bool]:
    """A run of a workflow with the rights of ``user``; (run, whether it is new).

    ``revision`` is the one that the user has read. Raises Conflict where there is another since, and for what was
    archived; and what ``start_run`` raises.
    """
    if revision is not None and revision != row.revision:
        raise Conflict("Somebody has changed it since you read it. Load it anew.", revision=row.revision)
    if row.archived_at is not None:
        raise Conflict("This workflow is put away.")
    return start_run(
        user,
        team=row.team,
        text=row.text,
        name=row.name,
        files=row.files,
        inputs=inputs,
        workflow=row,
        repository=row.repository,
        agent_profile=row.agent_profile,
        executor=row.executor,
        trigger=trigger,
        key=key,
    )


def rerun(user: Any, run: WorkflowRun) -> WorkflowRun:
    """Another run with what ``run`` was started with, and with the rights of ``user``.

    Raises Conflict where the workflow was changed since: what would run then is not what the user looks at.
    """
    inputs = {**run.inputs, "type": "manual"}
    inputs.pop("timestamp", None)
    if run.workflow is not None and run.workflow.archived_at is None:
        if run.workflow.revision != run.revision:
            raise Conflict("The workflow has changed since this run began. Open the workflow, and start it there.")
        return start_saved_run(user, run.workflow, inputs)[0]
    made, _ = start_run(
        user,
        team=run.team,
        text=run.text,
        name=run.name,
        files=run.files,
        inputs=inputs,
        repository=run.task.repository,
        agent_profile=run.agent_profile,
        executor=run.executor,
    )
    return made


log = logging.getLogger(__name__)
TRIGGER_CACHE_SIZE: Final = 256
"""Texts whose triggers are remembered."""
ACTIVE_STATES: Final = ("queued", "running")


@lru_cache(maxsize=TRIGGER_CACHE_SIZE)
def _load_triggers(text: str, files: str) -> WorkflowTriggers:
    return find_triggers(load_text(text, json.loads(files)).workflow)


def start_due_runs(now: datetime) -> int:
    """Start every run that is due; how many were new."""
    rows = Workflow.objects.filter(triggers_enabled=True, is_valid=True, archived_at=None)
    return sum(_start_if_due(row, now) for row in rows.defer("confirmed").order_by("id"))


def _start_if_due(row: Workflow, now: datetime) -> bool:
    try:
        triggers = _load_triggers(row.text, json.dumps(row.files, sort_keys=True))
    except ChecksUnavailable as error:
        log.warning("workflow %s: its triggers are looked at again in a minute: %s", row.id, error.message)
        return False
    return _start_by_cron(row, triggers, now) or _start_when_idle(row, triggers, now)


def _start_by_cron(row: Workflow, triggers: WorkflowTriggers, now: datetime) -> bool:
    """Start the run of the slot that is due, unless the one before is still under way; then wait for the next."""
    slot, begun = row.next_run_at, False
    if slot is not None and slot <= now and triggers.crons and not _is_cron_run_active(row):
        begun = _start_triggered_run(row, "cron", slot)
    if slot is None or slot <= now:
        after = triggers.next_after(now)
        same = Workflow.objects.filter(id=row.id, next_run_at=slot, revision=row.revision, triggers_enabled=True)
        same.update(next_run_at=after)
    return begun


def _is_cron_run_active(row: Workflow) -> bool:
    """Whether the clock's last run of it goes on; its own slot is asked for again after a crash all the same."""
    going_on = WorkflowRun.objects.filter(workflow=row, trigger="cron", state__in=ACTIVE_STATES)
    return going_on.exclude(idempotency_key=_idempotency_key(row, "cron", row.next_run_at)).exists()


def _start_when_idle(row: Workflow, triggers: WorkflowTriggers, now: datetime) -> bool:
    """Start it where nothing has gone on in its team for so long; once for each such time."""
    since = team_idle_since(row) if triggers.idle is not None else None
    if triggers.idle is None or since is None or now - since < triggers.idle:
        return False
    return _start_triggered_run(row, "idle", since)


def team_idle_since(row: Workflow) -> datetime | None:
    """When the last run or turn in its team ended, or itself was changed; None: something goes on."""
    runs = WorkflowRun.objects.filter(team=row.team_id)
    turns = Run.objects.filter(session__task__team=row.team_id)
    if runs.filter(state__in=ACTIVE_STATES).exists() or turns.filter(ended_at=None).exists():
        return None
    ends = (rows.aggregate(at=Max("ended_at"))["at"] for rows in (runs, turns))
    latest: datetime = max((row.updated_at, *(at for at in ends if at is not None)))
    return latest


def _idempotency_key(row: Workflow, trigger: str, at: datetime | None) -> str:
    return f"{trigger}:{row.id}:{at.isoformat() if at else ''}"


def _start_triggered_run(row: Workflow, trigger: str, at: datetime) -> bool:
    """One run with the rights of whoever confirmed the triggers; what keeps it from starting is told on its page."""
    inputs: dict[str, Any] = {"type": trigger, "timestamp": at.isoformat(), "text": "", "params": {}}
    key = _idempotency_key(row, trigger, at)
    try:
        load_text(row.text, row.files)  # it can take a while, and is then at hand within the transaction
    except ChecksUnavailable as error:
        log.warning("workflow %s: its %s trigger waits: %s", row.id, trigger, error.message)
        return False
    with transaction.atomic():
        # The row stays locked until the run is there, so that nobody changes it between the check and the run.
        now = trigger_settings.lock_workflow(row)
        if not now.triggers_enabled or now.archived_at is not None or now.revision != row.revision:
            return False
        if not trigger_settings.may_trigger_now(now):
            log.warning("workflow %s: its triggers are paused: %s", row.id, now.triggers_paused)
            return False
        try:
            _, is_new = start_saved_run(now.triggers_enabled_by, now, inputs, trigger=trigger, key=key)
        except IdempotencyKeyReused:
            return False  # it has had its run, and was changed since
        except SessionsError as error:
            log.warning("workflow %s: its %s trigger could not start it: %s", row.id, trigger, error.message)
            return _report_trouble(now, error.message)
        _report_trouble(now, "")
    return is_new


def _report_trouble(row: Workflow, trouble: str) -> bool:
    if row.trigger_error != trouble:
        Workflow.objects.filter(id=row.id).update(trigger_error=trouble)
    return False
