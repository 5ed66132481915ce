"""Enable, pause and confirm the scheduled triggers of a workflow.

The user who enables them confirms what they start. Any change of that pauses them, whoever makes it, until a user who
could start the workflow by hand confirms the difference; from then on scheduled runs have that user's rights. Except
for ``confirm_triggers``, functions here run in the caller's transaction, on a row that the caller has locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from sessions_app.accounts.authorization import require_write
from sessions_app.attention.rules import notices
from sessions_app.kernel.services.errors import Conflict, Invalid, ReadOnly
from sessions_app.models import raise_for_workflow, resolve_for_workflow
from sessions_app.workflows.language.graph import WorkflowGraph
from sessions_app.workflows.models import Workflow
from sessions_app.workflows.nodes.trigger import find_triggers
from sessions_app.workflows.services.missed_slots import MISSED_FIELDS, note_dropped_slots
from sessions_app.workflows.services.run_conditions import run_obstacle
from sessions_app.workflows.services.run_records import graph_of
from sessions_app.workflows.services.run_rights import default_executor, describe_required_rights, run_refusal
from sessions_app.workflows.services.trigger_confirmation import (
    changed_parts,
    compare_parts,
    confirmed_parts,
    current_parts,
    fingerprint_of,
    part_name,
    serialize_parts,
)

TRIGGER_FIELDS: Final = (
    "triggers_enabled",
    "triggers_enabled_by",
    "triggers_confirmed_at",
    "triggers_paused",
    "confirmed",
    "next_run_at",
    "trigger_error",
    *MISSED_FIELDS,
    "updated_at",
)
"""The fields of a workflow that this module writes."""
UNREADABLE_REASON: Final = "The text has errors, so it cannot be run."
MAX_NAMED_PARTS: Final = 5
"""Maximum number of changed parts that a sentence names."""


def update_triggers(user: User, row: Workflow, graph: WorkflowGraph | None, enable: bool | None) -> None:
    """Set the triggers of a row that ``user`` is about to save. ``enable``: True, False, or None for no change.

    If the user may not start the workflow, or it changes while they are enabled, they are paused until confirmed.
    """
    was_enabled = row.triggers_enabled
    if enable is False:
        note_dropped_slots(row)
        # The confirmed state is kept, to show the difference when they are enabled again.
        row.triggers_enabled, row.triggers_paused, row.next_run_at = False, "", None
        row.triggers_enabled_by = None
    elif row.triggers_enabled:
        if changed := changed_parts(row, graph):
            pause_triggers(row, f"{user.get_username()} changed {_format_parts(changed)}.")
    elif enable and not row.triggers_paused:
        if refusal := _why_not_enabled(user, row, graph):
            pause_triggers(row, refusal)
        else:
            _enable_triggers(user, row, graph)
    row.trigger_error = ""
    if not row.triggers_enabled:
        row.next_run_at = None
    elif not was_enabled:
        row.next_run_at = find_triggers(graph).next_after(timezone.now())
    # Otherwise nothing has changed of what starts it, and a slot that is due stays due.


def pause_triggers(row: Workflow, reason: str) -> None:
    """Pause the triggers until a user confirms them; ``reason`` is a sentence."""
    note_dropped_slots(row)
    row.triggers_enabled, row.triggers_paused, row.next_run_at = False, reason, None


def sync_attention(row: Workflow) -> None:
    """Raise or resolve the inbox item of a saved row."""
    if not row.triggers_paused:
        outcome = "confirmed" if row.triggers_enabled else "switched_off"
        resolve_for_workflow(row, outcome)
        return
    graph = graph_of(row.text, row.files)
    required_rights = describe_required_rights(row.team, default_executor(row.executor), graph)
    notice = notices.triggers_paused_notice(str(row.id), row.name, row.triggers_paused, required_rights)
    raise_for_workflow(row, notice)


def confirm_triggers(user: User, workflow: Workflow, fingerprint: str) -> Workflow:
    """Enable the triggers of a workflow, with the rights of ``user``.

    ``fingerprint`` comes from the ``triggers_document`` that the user has read. Raises Conflict if another state would
    run now, or the workflow is archived; ReadOnly if the user may not start it; Invalid if its text has errors; and
    ChecksUnavailable.
    """
    require_write(user, workflow.team)
    # Before the transaction: loading can take half a minute, during which no other process could write on SQLite.
    graph = graph_of(workflow.text, workflow.files)
    loaded = current_parts(workflow, graph)
    is_confirmed = fingerprint == fingerprint_of(loaded)
    with transaction.atomic():
        row = lock_workflow(workflow)
        if row.archived_at is not None:
            raise Conflict("This workflow is archived.")
        if not is_confirmed or current_parts(row, graph) != loaded:
            raise Conflict(
                "The workflow has changed since you opened this page. Read the difference again, then confirm it."
            )
        if graph is None:
            raise Invalid(f"{UNREADABLE_REASON} Correct it first.", field="text")
        if refusal := run_refusal(user, row.team, default_executor(row.executor), graph):
            raise ReadOnly(refusal)
        if obstacle := obstacle_of(row, graph):
            raise Invalid(obstacle, field="triggers_enabled")
        if not row.triggers_enabled:  # otherwise a slot that is due stays due
            row.next_run_at = find_triggers(graph).next_after(timezone.now())
        _enable_triggers(user, row, graph)
        row.trigger_error = ""
        row.save(update_fields=TRIGGER_FIELDS)
        sync_attention(row)
    return row


def lock_workflow(workflow: Workflow) -> Workflow:
    """Return the row, locked until the transaction ends."""
    rows = Workflow.objects.select_related("team", "repository", "agent_profile", "executor", "triggers_enabled_by")
    found: Workflow = rows.select_for_update(no_key=True, of=("self",)).get(id=workflow.id)
    return found


def may_trigger_now(row: Workflow) -> bool:
    """Return whether a trigger may start a locked workflow now; otherwise pause its triggers.

    It may if nothing has changed since the confirmation, and the user who confirmed it may still run it. Call this in
    the transaction that creates the run, so that nothing can change in between.
    """
    graph = graph_of(row.text, row.files)
    changed = changed_parts(row, graph)
    if changed:
        names = _format_parts(changed)
        reason = f"{names[0].upper()}{names[1:]} changed since the last confirmation."
    elif graph is None:
        reason = UNREADABLE_REASON
    else:
        reason = run_refusal(row.triggers_enabled_by, row.team, default_executor(row.executor), graph)
    if not reason:
        return True
    pause_triggers(row, reason)
    row.save(update_fields=TRIGGER_FIELDS)
    sync_attention(row)
    return False


def triggers_document(user: User, row: Workflow) -> dict[str, Any]:
    """Return what the page and the API show about triggers, with the changes since they were confirmed."""
    graph = graph_of(row.text, row.files)
    executor = default_executor(row.executor)
    parts, confirmed = current_parts(row, graph), confirmed_parts(row)
    changed: list[str] = []
    if confirmed or row.triggers_paused:
        changed = changed_parts(row, graph)
    differences = compare_parts(confirmed, parts, f"team:{row.team_id}")
    refusal = _why_not_enabled(user, row, graph)
    if row.archived_at is not None:
        refusal = "This workflow is archived."
    enabled_by = row.triggers_enabled_by
    return {
        "enabled": row.triggers_enabled,
        "paused": row.triggers_paused,
        "enabled_by": row.triggers_enabled_by_id,
        "enabled_by_name": enabled_by.get_username() if enabled_by else "",
        "confirmed_at": row.triggers_confirmed_at,
        "next_run_at": row.next_run_at,
        "fingerprint": fingerprint_of(parts),
        "changes": [difference for difference in differences if difference.part in changed],
        "may_confirm": not refusal,
        "refusal": refusal,
        "who_may_confirm": describe_required_rights(row.team, executor, graph),
    }


def obstacle_of(row: Workflow, graph: WorkflowGraph) -> str:
    """Return what keeps everybody from running a workflow with its own settings; empty if nothing does."""
    return run_obstacle(
        graph,
        team_id=row.team_id,
        repository=row.repository,
        executor=default_executor(row.executor),
        agent_profile=row.agent_profile,
    )


def _why_not_enabled(user: User, row: Workflow, graph: WorkflowGraph | None) -> str:
    """Return why ``user`` may not enable the triggers now, as a sentence; empty if it is allowed."""
    if graph is None:
        return UNREADABLE_REASON
    return run_refusal(user, row.team, default_executor(row.executor), graph) or obstacle_of(row, graph)


def _enable_triggers(user: User, row: Workflow, graph: WorkflowGraph | None) -> None:
    row.triggers_enabled, row.triggers_paused = True, ""
    row.triggers_enabled_by_id, row.triggers_confirmed_at = user.pk, timezone.now()
    row.confirmed = serialize_parts(current_parts(row, graph))


def _format_parts(parts: Sequence[str]) -> str:
    names = [f"the {part_name(part)}" for part in parts[:MAX_NAMED_PARTS]]
    if len(parts) > MAX_NAMED_PARTS:
        names.append(f"{len(parts) - MAX_NAMED_PARTS} more")
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"
