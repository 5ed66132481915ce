"""Raise and resolve the attention items of runs."""

from __future__ import annotations

from sessions_app.attention.rules import notices
from sessions_app.attention.rules.notices import AttentionKind
from sessions_app.models import (
    AttentionItem,
    TaskSession,
    raise_for_run,
    raise_item,
    resolve_for_run,
    resolve_items,
    session_transaction,
)
from sessions_app.workflows.models import NodeRun, WorkflowRun

_RAISED_BY_SESSION = (
    AttentionKind.HELD,
    AttentionKind.PERMISSION,
    AttentionKind.QUESTION,
    AttentionKind.GAVE_UP,
    AttentionKind.ERROR,
)


def raise_node_waiting(run: WorkflowRun, row: NodeRun) -> None:
    """Raise an inbox item for a node that waits for a user, unless its session has one for the same reason."""
    if row.session_id is None:
        return
    open_items = AttentionItem.objects.filter(session=row.session_id, resolved_at=None)
    if not open_items.filter(kind__in=_RAISED_BY_SESSION).exists():
        with session_transaction(row.session_id) as transaction:
            raise_item(transaction, notices.node_waits_notice(str(run.id), row.path, run.name, row.attempt))


def resolve_node_waiting(row: NodeRun) -> None:
    """Resolve the inbox item of a node that continues, or has ended."""
    items = AttentionItem.objects.filter(
        session=row.session_id, kind=AttentionKind.WORKFLOW, resolved_at=None, key__startswith="workflow_node:"
    )
    if row.session_id is not None and items.exists():
        with session_transaction(row.session_id) as transaction:
            resolve_items(transaction, "goes_on", (AttentionKind.WORKFLOW,), key_begins="workflow_node:")


def raise_run_failed(run: WorkflowRun) -> None:
    """Raise an inbox item for a failed run.

    It belongs to the session that failed last, or else to any session of the run, or else to the run alone.
    """
    notice = notices.run_failed_notice(str(run.id), run.name, run.error, run.round)
    session = _session_to_notify(run)
    if session is None:
        raise_for_run(run, notice)
        return
    with session_transaction(session.id) as transaction:
        raise_item(transaction, notice, run)


def resolve_run_failed(run: WorkflowRun) -> None:
    """Resolve the inbox item of a failed run, because a user has resumed it."""
    resolve_for_run(run, "goes_on")
    prefix = notices.run_key(str(run.id))
    found = AttentionItem.objects.filter(task=run.task_id, resolved_at=None, key__startswith=prefix).first()
    if found is not None and found.session_id is not None:
        with session_transaction(found.session_id) as transaction:
            resolve_items(transaction, "goes_on", (AttentionKind.WORKFLOW,), key_begins=prefix)


def _session_to_notify(run: WorkflowRun) -> TaskSession | None:
    failed = run.node_runs.filter(state="failed", session__isnull=False).select_related("session").last()
    if failed is not None:
        return failed.session
    return run.workspace or run.task.sessions.first()
