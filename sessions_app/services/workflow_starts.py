"""Starting a workflow that a team keeps, as it is now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sessions_app.models import Workflow, WorkflowRun
from sessions_app.services.errors import Conflict
from sessions_app.services.workflows import start_run


def start_run_of(
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


def run_again(user: Any, run: WorkflowRun) -> WorkflowRun:
    """Another run with what ``run`` was started with, and with the rights of ``user``.

    Raises Conflict where the workflow was changed since: what would run then is not what the user looks at.
    """
    inputs = {**run.inputs, "type": "manual"}
    inputs.pop("timestamp", None)
    if run.workflow is not None and run.workflow.archived_at is None:
        if run.workflow.revision != run.revision:
            raise Conflict("The workflow has changed since this run began. Open the workflow, and start it there.")
        return start_run_of(user, run.workflow, inputs)[0]
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
