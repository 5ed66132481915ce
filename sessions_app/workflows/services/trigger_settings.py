"""Whether a workflow's triggers start it by themselves, and with whose rights.

Whoever enables them confirms what they start. Any change of that pauses them, whoever made it, until somebody who
could start the workflow by hand confirms the difference; from then on scheduled runs have that person's rights.
Every function here works in the caller's transaction on a row that the caller has locked, but for ``confirm``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from sessions_app.accounts.authorization import require_write
from sessions_app.domain import attention
from sessions_app.models import raise_for_workflow, resolve_for_workflow
from sessions_app.services.errors import Conflict, Invalid, ReadOnly
from sessions_app.workflows.language.graph import WorkflowGraph as Graph
from sessions_app.workflows.models import Workflow
from sessions_app.workflows.nodes.trigger import find_triggers
from sessions_app.workflows.services.assignment import default_executor, describe_required_rights, run_refusal
from sessions_app.workflows.services.run_records import graph_of
from sessions_app.workflows.services.trigger_confirmation import (
    VERSION,
    changed_parts,
    compare_parts,
    confirmed_parts,
    current_parts,
    fingerprint_of,
    part_name,
    serialize_parts,
)

TRIGGER_FIELDS: Final = (
    *("triggers_enabled", "triggers_enabled_by", "triggers_confirmed_at", "triggers_paused", "confirmed"),
    *("next_run_at", "trigger_error", "updated_at"),
)
"""Of a workflow: what is written here."""
UNREADABLE_REASON: Final = "The text cannot be run as it is written."
MAX_NAMED_PARTS: Final = 5
"""Changed parts that a sentence names."""


def update_triggers(user: Any, row: Workflow, graph: Graph | None, asked: bool | None) -> None:
    """Set the triggers of a row that ``user`` is about to save; ``asked`` is the wish to switch them, if there is one.

    Switched on by somebody who may not start it, or changed while they are on, they wait for a confirmation.
    """
    if asked is False:
        _disable_triggers(row)
    elif row.triggers_enabled:
        if changed := changed_parts(row, graph):
            pause_triggers(row, f"{user.get_username()} changed {_format_parts(changed)}.")
    elif asked and not row.triggers_paused:
        trouble = run_refusal(user, row.team, default_executor(row.executor), graph) if graph else UNREADABLE_REASON
        if trouble:
            pause_triggers(row, trouble)
        else:
            _enable_triggers(user, row, graph)
    row.trigger_error = ""
    row.next_run_at = find_triggers(graph).next_after(timezone.now()) if row.triggers_enabled else None


def pause_triggers(row: Workflow, why: str) -> None:
    """Let nothing be started until somebody confirms; ``why`` is a sentence."""
    row.triggers_enabled, row.triggers_paused, row.next_run_at = False, why, None


def sync_attention(row: Workflow) -> None:
    """Have the inbox say what the saved row says."""
    if row.triggers_paused:
        graph = graph_of(row.text, row.files)
        who = describe_required_rights(row.team, default_executor(row.executor), graph)
        raise_for_workflow(row, attention.triggers_paused_notice(str(row.id), row.name, row.triggers_paused, who))
    else:
        resolve_for_workflow(row, "confirmed" if row.triggers_enabled else "switched_off")


def confirm_triggers(user: Any, workflow: Workflow, fingerprint: str) -> Workflow:
    """Let the triggers of a workflow start it from now on, with the rights of ``user``.

    ``fingerprint`` names what the user has seen, as ``triggers_document`` told it. Raises Conflict where that is no
    longer what would run, or the workflow is archived; ReadOnly for somebody who could not start it; Invalid for a
    text that cannot be run; ChecksUnavailable.
    """
    require_write(user, workflow.team)
    # Before the transaction: loading can take half a minute, in which nobody else could write to the database.
    graph = graph_of(workflow.text, workflow.files)
    with transaction.atomic():
        row = lock_workflow(workflow)
        if row.archived_at is not None:
            raise Conflict("This workflow was archived.")
        is_as_loaded = (row.text, row.files) == (workflow.text, workflow.files)
        if not is_as_loaded or fingerprint != fingerprint_of(current_parts(row, graph)):
            raise Conflict("It has changed since you looked at it. Read the difference again, then confirm it.")
        if graph is None:
            raise Invalid(f"{UNREADABLE_REASON} Correct it first.", field="text")
        if trouble := run_refusal(user, row.team, default_executor(row.executor), graph):
            raise ReadOnly(trouble)
        _enable_triggers(user, row, graph)
        row.trigger_error = ""
        row.next_run_at = find_triggers(graph).next_after(timezone.now())
        row.save(update_fields=TRIGGER_FIELDS)
        sync_attention(row)
    return row


def lock_workflow(workflow: Workflow) -> Workflow:
    """The row, locked until the transaction ends."""
    rows = Workflow.objects.select_related("team", "repository", "agent_profile", "executor", "triggers_enabled_by")
    found: Workflow = rows.select_for_update(no_key=True, of=("self",)).get(id=workflow.id)
    return found


def may_trigger_now(row: Workflow) -> bool:
    """Whether a trigger may start a locked row now, as it was confirmed and with the rights of who did; else pause it.

    Called in the transaction that makes the run, so nothing comes between the check and the run.
    """
    graph = graph_of(row.text, row.files)
    changed = changed_parts(row, graph)
    if changed:
        why = f"This is not as it was confirmed: {_format_parts(changed)}."
    elif graph is None:
        why = UNREADABLE_REASON
    else:
        why = run_refusal(row.triggers_enabled_by, row.team, default_executor(row.executor), graph)
    if not why:
        if row.confirmed.get("version", VERSION) < VERSION:
            row.confirmed = serialize_parts(current_parts(row, graph))
            row.save(update_fields=["confirmed"])
        return True
    pause_triggers(row, why)
    row.save(update_fields=TRIGGER_FIELDS)
    sync_attention(row)
    return False


def triggers_document(user: Any, row: Workflow) -> dict[str, Any]:
    """What the page and the API show of a workflow's triggers, with what has changed since they were confirmed."""
    graph, place = graph_of(row.text, row.files), default_executor(row.executor)
    parts, confirmed = current_parts(row, graph), confirmed_parts(row)
    is_known = bool(confirmed or row.triggers_paused)
    changed = changed_parts(row, graph) if is_known else []
    trouble = run_refusal(user, row.team, place, graph) if graph else UNREADABLE_REASON
    if row.archived_at is not None:
        trouble = "This workflow was archived."
    return {
        "enabled": row.triggers_enabled,
        "paused": row.triggers_paused,
        "enabled_by": row.triggers_enabled_by_id,
        "enabled_by_name": row.triggers_enabled_by.get_username() if row.triggers_enabled_by else "",
        "confirmed_at": row.triggers_confirmed_at,
        "next_run_at": row.next_run_at,
        "fingerprint": fingerprint_of(parts),
        "changes": [part for part in compare_parts(confirmed, parts) if part.part in changed],
        "may_confirm": not trouble,
        "refusal": trouble,
        "who_may_confirm": describe_required_rights(row.team, place, graph),
    }


def _enable_triggers(user: Any, row: Workflow, graph: Graph | None) -> None:
    row.triggers_enabled, row.triggers_paused = True, ""
    row.triggers_enabled_by_id, row.triggers_confirmed_at = user.pk, timezone.now()
    row.confirmed = serialize_parts(current_parts(row, graph))


def _disable_triggers(row: Workflow) -> None:
    """What was confirmed is kept, to tell the difference when they are switched on again."""
    row.triggers_enabled, row.triggers_paused, row.next_run_at = False, "", None
    row.triggers_enabled_by = None


def _format_parts(parts: Sequence[str]) -> str:
    names = [f"the {part_name(part)}" for part in parts[:MAX_NAMED_PARTS]]
    if len(parts) > MAX_NAMED_PARTS:
        names.append(f"{len(parts) - MAX_NAMED_PARTS} more")
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
