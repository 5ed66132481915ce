"""What of a run needs somebody: a node that waits for a user, and a run that has failed."""

from __future__ import annotations

from sessions_app.domain import attention
from sessions_app.domain.attention import AttentionKind
from sessions_app.models import (
    AttentionItem,
    NodeRun,
    TaskSession,
    WorkflowRun,
    raise_for_run,
    raise_item,
    resolve,
    resolve_for_run,
    writing,
)

_SAID_BY_ITS_SESSION = (
    AttentionKind.HELD,
    AttentionKind.PERMISSION,
    AttentionKind.GAVE_UP,
    AttentionKind.ERROR,
)


def waits(run: WorkflowRun, row: NodeRun) -> None:
    """A node waits for a user; nothing is raised where its session says so already."""
    if row.session_id is None:
        return
    open_items = AttentionItem.objects.filter(session=row.session_id, resolved_at=None)
    if not open_items.filter(kind__in=_SAID_BY_ITS_SESSION).exists():
        with writing(row.session_id) as draft:
            raise_item(draft, attention.node_waits(str(run.id), row.path, run.name, row.attempt))


def waits_no_more(row: NodeRun) -> None:
    """It goes on, or has ended."""
    items = AttentionItem.objects.filter(
        session=row.session_id, kind=AttentionKind.WORKFLOW, resolved_at=None, key__startswith="workflow_node:"
    )
    if row.session_id is not None and items.exists():
        with writing(row.session_id) as draft:
            resolve(draft, "goes_on", (AttentionKind.WORKFLOW,), key_begins="workflow_node:")


def failed(run: WorkflowRun) -> None:
    """A run has failed: told at the session of what failed last, or at any, else of the run alone."""
    session, notice = _session_of(run), attention.run_failed(str(run.id), run.name, run.error, run.round)
    if session is None:
        raise_for_run(run, notice)
        return
    with writing(session.id) as draft:
        raise_item(draft, notice, run)


def begins_again(run: WorkflowRun) -> None:
    """Somebody has it go on: that it failed needs nobody any more."""
    resolve_for_run(run, "goes_on")
    prefix = attention.run_key(str(run.id))
    found = AttentionItem.objects.filter(task=run.task_id, resolved_at=None, key__startswith=prefix).first()
    if found is not None and found.session_id is not None:
        with writing(found.session_id) as draft:
            resolve(draft, "goes_on", (AttentionKind.WORKFLOW,), key_begins=prefix)


def _session_of(run: WorkflowRun) -> TaskSession | None:
    row = run.node_runs.filter(state="failed", session__isnull=False).select_related("session").last()
    found: TaskSession | None = row.session if row is not None else run.workspace or run.task.sessions.first()
    return found
