"""Save and archive workflows, and start, cancel and resume runs, which the driver carries out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import OuterRef, QuerySet, Subquery
from django.utils import timezone

from sessions_app.accounts.authorization import require_write
from sessions_app.kernel.services.errors import (
    Conflict,
    Invalid,
)
from sessions_app.models import resolve_for_workflow
from sessions_app.workflows.language.diagnostics import Diagnostic
from sessions_app.workflows.loader.loading import LoadResult
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.services import trigger_settings
from sessions_app.workflows.services.loading import load_text
from sessions_app.workflows.services.missed_slots import MISSED_FIELDS, note_dropped_slots
from sessions_app.workflows.services.run_conditions import (
    check_belongs_to_team,
    check_size,
)

SAVED_FIELDS: Final = ("name", "description", "repository", "agent_profile", "executor")
ARCHIVED_FIELDS: Final = ("archived_at", "triggers_enabled", "triggers_paused", "next_run_at", *MISSED_FIELDS)
"""The fields of a workflow that change when it is archived."""


def save_workflow(
    user: User, values: Mapping[str, Any], workflow: Workflow | None = None, revision: int | None = None
) -> tuple[Workflow, tuple[Diagnostic, ...]]:
    """Create or change a workflow, and return it with its problems; an invalid text is saved, but cannot be run.

    ``values`` can have team (of a new workflow), text, files, name, description, repository, agent_profile, executor
    and triggers_enabled; omitted ones stay as they are. ``revision`` is the one that the user has read. A change of
    what its triggers start pauses them (see ``trigger_settings``). Raises ReadOnly, Invalid, ChecksUnavailable, and
    Conflict for an old revision, a name that is taken, or an archived workflow.
    """
    if workflow is not None:
        team, text, files = workflow.team, workflow.text, workflow.files
    else:
        team, text, files = values["team"], "", {}
    require_write(user, team)
    text = values.get("text", text) or ""
    files = values.get("files", files) or {}
    check_size(text, files)
    # Before the transaction, which then finds the result in the cache: no row stays locked while a text is loaded.
    load_text(text, files)
    with transaction.atomic():
        if workflow is not None:
            row = _lock_workflow(workflow, revision)
        else:
            row = Workflow(team=team, created_by=user)
        loaded = _assign_values(row, values, is_new=workflow is None)
        check_belongs_to_team(row, row.repository, row.agent_profile)
        trigger_settings.update_triggers(user, row, loaded.workflow, values.get("triggers_enabled"))
        try:
            with transaction.atomic():
                row.save()
        except IntegrityError as error:
            raise Conflict(
                f"The team already has a workflow named “{row.name}”. Choose another name.", field="name"
            ) from error
        trigger_settings.sync_attention(row)
    return row, loaded.problems


def _lock_workflow(workflow: Workflow, revision: int | None) -> Workflow:
    row = trigger_settings.lock_workflow(workflow)
    if row.archived_at is not None:
        raise Conflict("This workflow is archived.")
    if revision is not None and revision != row.revision:
        raise Conflict("This workflow was changed after you opened it.", revision=row.revision)
    return row


def _assign_values(row: Workflow, values: Mapping[str, Any], *, is_new: bool) -> LoadResult:
    before = row.text, row.files
    for name in (*SAVED_FIELDS, "text", "files"):
        if name in values:
            setattr(row, name, values[name])
    check_size(row.text, row.files)
    loaded = load_text(row.text, row.files)
    row.is_valid = loaded.workflow is not None
    if loaded.workflow is not None:
        row.name = row.name or loaded.workflow.name
        row.description = row.description or loaded.workflow.description
    if not row.name.strip():
        raise Invalid("The workflow needs a name.", field="name")
    if not is_new and (row.text, row.files) != before:
        row.revision += 1
    return loaded


def archive_workflow(user: User, workflow: Workflow) -> Workflow:
    """Archive a workflow. Its runs stay, and its triggers no longer start it."""
    require_write(user, workflow.team)
    with transaction.atomic():
        row = trigger_settings.lock_workflow(workflow)
        if row.archived_at is None:
            note_dropped_slots(row)
            row.archived_at, row.triggers_enabled = timezone.now(), False
            row.triggers_paused, row.next_run_at = "", None
            row.save(update_fields=ARCHIVED_FIELDS)
        resolve_for_workflow(workflow, "archived")
    workflow.refresh_from_db()
    return workflow


def visible_workflows(user: User) -> QuerySet[Workflow]:
    """Return the workflows of the user's teams, with ``last_run_id``, ``last_run_state`` and ``last_run_at``."""
    runs = WorkflowRun.objects.filter(workflow=OuterRef("pk")).order_by("-created_at")
    found: QuerySet[Workflow] = Workflow.objects.visible_to(user).select_related("team", "repository")
    return found.defer("confirmed").annotate(
        last_run_id=Subquery(runs.values("id")[:1]),
        last_run_state=Subquery(runs.values("state")[:1]),
        last_run_at=Subquery(runs.values("created_at")[:1]),
    )
