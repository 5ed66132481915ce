"""Going on with a run that has ended, in the caller's transaction."""

from __future__ import annotations

from typing import Any

from sessions_app.models import WorkflowRun
from sessions_app.services import workflow_notices
from sessions_app.services.errors import Invalid
from sessions_app.services.workflow_rows import RECORD_FIELDS, records_of, workflow_of
from sessions_app.workflows.going_on import NothingToDo, going_on


def begin_again(user: Any, run: WorkflowRun, path: str) -> None:
    """Forget what is done again, and put the run into the line of those to be driven. Raises Invalid."""
    rows = {row.path: row for row in run.node_runs.order_by("position")}
    try:
        kept = going_on(workflow_of(run), records_of(rows.values()), path)
    except NothingToDo as error:
        raise Invalid(f"Nothing can be done again: {error}.", field="path") from error
    run.node_runs.exclude(path__in=kept).delete()
    for name, record in kept.items():
        row = rows[name]
        if (row.state, row.iteration) != (str(record.state), record.iteration):
            for field in RECORD_FIELDS:
                setattr(row, field, getattr(record, field))
            row.ended_at = None
            row.save()
    workflow_notices.begins_again(run)
    run.state, run.error, run.outputs = "queued", "", {}
    run.ended_at = run.cancel_requested_at = None
    run.round += 1
    run.version += 1
    run.started_by = user or run.started_by
    run.save()
