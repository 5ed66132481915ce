"""List the workflows and runs that a user may see, and start saved workflows: on request, by cron, or when idle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from executors_app.models import AgentProfile, Executor
from sessions_app.accounts.authorization import require_write
from sessions_app.board.services.tasks import create_task
from sessions_app.kernel import wakeups
from sessions_app.kernel.services.errors import (
    Conflict,
    Invalid,
    ReadOnly,
    TerminalState,
)
from sessions_app.kernel.services.idempotency import IdempotencyMark, create_once, mark_request
from sessions_app.models import Repository, Task
from sessions_app.workflows.engine.resume import NothingToResume, records_to_resume
from sessions_app.workflows.language.diagnostics import Diagnostic, InvalidWorkflow
from sessions_app.workflows.language.graph import WorkflowGraph
from sessions_app.workflows.language.values import ConversionError, convert_value
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.services import run_attention
from sessions_app.workflows.services.loading import load_text
from sessions_app.workflows.services.run_conditions import (
    check_agents,
    check_belongs_to_team,
    check_size,
    check_workplace,
)
from sessions_app.workflows.services.run_records import RECORD_FIELDS, graph_of_run, records_from_rows
from sessions_app.workflows.services.run_rights import default_executor, run_refusal

INPUTS_LIMIT: Final = 1 << 20
"""Maximum number of characters of a run's inputs as JSON."""


def visible_runs(user: User) -> QuerySet[WorkflowRun]:
    """Return the runs of the user's teams, newest first, without their texts."""
    found: QuerySet[WorkflowRun] = WorkflowRun.objects.visible_to(user).defer("text", "files", "inputs", "outputs")
    return found.select_related("team")


def run_of_task(task: Task) -> WorkflowRun | None:
    """Return the run that a task belongs to (id and name only); None for a task that a user created."""
    return WorkflowRun.objects.filter(task=task).only("id", "name").first()


def start_saved_run(
    user: User,
    row: Workflow,
    inputs: Mapping[str, Any],
    *,
    trigger: str = "manual",
    key: str = "",
    mark: IdempotencyMark | None = None,
    revision: int | None = None,
) -> tuple[WorkflowRun, bool]:
    """Start a run of a workflow with the rights of ``user``; return (run, whether it is new).

    ``revision`` is the one that the user has read. Raises Conflict if there is a newer one or the workflow is archived,
    and what ``start_run`` raises.
    """
    if revision is not None and revision != row.revision:
        raise Conflict("This workflow was changed after you opened it. Reload it.", revision=row.revision)
    if row.archived_at is not None:
        raise Conflict("This workflow is archived.")
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
        mark=mark,
    )


def rerun(user: User, run: WorkflowRun) -> WorkflowRun:
    """Start another run with the inputs of ``run`` and the rights of ``user``.

    Raises Conflict if the workflow was changed since, because it would run another text than the user sees.
    """
    inputs = dict(run.inputs)
    inputs["type"] = "manual"
    inputs.pop("timestamp", None)
    if run.workflow is not None and run.workflow.archived_at is None:
        if run.workflow.revision != run.revision:
            raise Conflict("The workflow has changed since this run began. Open the workflow, and start it there.")
        return start_saved_run(user, run.workflow, inputs)[0]
    new_run, _ = start_run(
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
    return new_run


def resolve_inputs(graph: WorkflowGraph, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a run: declared ones converted to their types, with defaults for omitted or empty ones.

    Undeclared inputs stay as they are. Raises Invalid, naming every input that is missing or has the wrong type.
    """
    values = dict(given)
    problems = []
    for port in graph.inputs:
        value = given.get(port.name)
        if value in (None, ""):
            value = port.default
        try:
            value = convert_value(value, port.type)
        except ConversionError as error:
            problems.append(f"The input “{port.name}”: {error}.")
            continue
        if value is not None:
            values[port.name] = value
        elif port.required:
            problems.append(f"The input “{port.name}” is missing.")
    if problems:
        raise Invalid(" ".join(problems), field="inputs", problems=problems)
    return values


def resume_run(user: User, run: WorkflowRun, path: str) -> None:
    """Delete the node runs to repeat, and queue the run again. Raises Invalid.

    ``round`` rises with each resume, so that repeated nodes use new prompt and job ids: for the old ids, the ledger
    and agentctl would return the old results.
    """
    rows = {row.path: row for row in run.node_runs.order_by("position")}
    try:
        kept = records_to_resume(graph_of_run(run), records_from_rows(rows.values()), path)
    except NothingToResume as error:
        raise Invalid(f"There is nothing to resume: {error}.", field="path") from error
    run.node_runs.exclude(path__in=kept).delete()
    for name, record in kept.items():
        row = rows[name]
        if (row.state, row.iteration) != (str(record.state), record.iteration):
            for field in RECORD_FIELDS:
                setattr(row, field, getattr(record, field))
            row.ended_at = None
            row.save()
    run_attention.resolve_run_failed(run)
    run.state, run.error, run.outputs = "queued", "", {}
    run.ended_at = run.cancel_requested_at = None
    run.round += 1
    run.version += 1
    run.started_by = user or run.started_by
    run.save()


def start_run(
    user: User,
    *,
    team: Group,
    text: str,
    name: str = "",
    files: Mapping[str, str] | None = None,
    inputs: Mapping[str, Any] | None = None,
    workflow: Workflow | None = None,
    repository: Repository | None = None,
    agent_profile: AgentProfile | None = None,
    executor: Executor | None = None,
    trigger: str = "manual",
    key: str = "",
    mark: IdempotencyMark | None = None,
) -> tuple[WorkflowRun, bool]:
    """Create a run of a text, with its own task; return (run, whether it is new).

    A second call with the same idempotency ``key`` returns the first run. A caller that has begun a transaction
    gives the ``mark`` that it made before it. Raises ReadOnly, ChecksUnavailable, and
    Invalid: with ``problems`` for a text with errors, otherwise with the name of a field.
    """
    require_write(user, team)
    check_size(text, files or {})
    _check_inputs(inputs or {})
    loaded = load_text(text, files or {})
    if loaded.workflow is None:
        raise Invalid(
            "The workflow has errors, so it cannot be run.", field="text", problems=_describe_problems(loaded.problems)
        )
    graph = loaded.workflow
    values: dict[str, Any] = {"timestamp": timezone.now().isoformat(), "type": trigger, "text": "", "params": {}}
    values |= resolve_inputs(graph, inputs or {})
    revision = 0
    if workflow is not None:
        revision = workflow.revision
        repository = repository or workflow.repository
        agent_profile = agent_profile or workflow.agent_profile
        executor = executor or workflow.executor
    executor = default_executor(executor)
    if executor is None:
        raise Invalid("There is no executor yet. Ask staff to add one.", field="executor")
    run = WorkflowRun(
        team=team,
        workflow=workflow,
        name=name or graph.name,
        text=text,
        files=dict(files or {}),
        inputs=values,
        trigger=trigger,
        started_by=user,
        revision=revision,
        agent_profile=agent_profile,
        executor=executor,
    )
    _check_run_possible(user, run, graph, repository)
    if mark is None:
        request = {
            "text": text,
            "files": _sorted_json(files),
            "inputs": _sorted_json(inputs),
            "workflow": workflow and workflow.id,
        }
        mark = mark_request(key, request)

    def create(mark: IdempotencyMark) -> WorkflowRun:
        run.task = create_task(user, {"team": team, "title": f"Workflow: {run.name}"[:300], "repository": repository})
        for field, value in mark.items():
            setattr(run, field, value)
        run.save(force_insert=True)
        return run

    with transaction.atomic():
        found, is_new = create_once(WorkflowRun.objects.filter(team=team), mark, create)
        if is_new:
            wakeups.notify_on_commit()  # a driver that woke earlier would not find the run yet
    return found, is_new


def _sorted_json(values: Mapping[str, Any] | None) -> str:
    return json.dumps(dict(values or {}), sort_keys=True)


def _describe_problems(problems: Sequence[Diagnostic]) -> list[str]:
    return [str(diagnostic) for diagnostic in problems]


def _check_inputs(inputs: Mapping[str, Any]) -> None:
    try:
        text = json.dumps(dict(inputs), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid("The inputs cannot be represented as JSON.", field="inputs") from error
    if len(text) > INPUTS_LIMIT or "\\u0000" in text:
        raise Invalid(
            f"The inputs are larger than {INPUTS_LIMIT >> 20} MiB, or contain the character U+0000.", field="inputs"
        )


def _check_run_possible(user: User, run: WorkflowRun, graph: WorkflowGraph, repository: Repository | None) -> None:
    """Check that the run is possible at all, before anyone waits for it."""
    workflow = run.workflow
    if workflow is not None and (workflow.archived_at is not None or workflow.team_id != run.team_id):
        raise Invalid("This workflow is archived, or belongs to another team.", field="workflow")
    check_belongs_to_team(run, repository, run.agent_profile)
    check_workplace(graph, repository, run.executor)
    if refusal := run_refusal(user, run.team, run.executor, graph):
        raise ReadOnly(refusal)
    run.note = check_agents(graph, run.team_id, run.agent_profile)


def cancel_run(user: User, run: WorkflowRun) -> WorkflowRun:
    """Request the end of a run, with all its scripts and turns. A run that is over stays as it is."""
    require_write(user, run.team)
    with transaction.atomic():
        # Locked, so that the driver cannot end the run between the check and the write.
        row = WorkflowRun.objects.select_for_update(no_key=True).get(id=run.id)
        if not row.is_over and row.cancel_requested_at is None:
            row.cancel_requested_at = timezone.now()
            row.version += 1
            row.save(update_fields=["cancel_requested_at", "version"])
            wakeups.notify_on_commit()
    return row


def retry_run(user: User, run: WorkflowRun, path: str = "") -> WorkflowRun:
    """Resume a failed or cancelled run, at the nodes that failed or at the node run ``path``.

    Finished node runs before it are kept with their sessions; repeated ones are requested again. Raises ReadOnly,
    Invalid, Conflict for a run that is active or has succeeded, and TerminalState if its task is over.
    """
    require_write(user, run.team)
    try:
        graph_of_run(run)  # before the transaction, which then finds it in the cache
    except InvalidWorkflow as error:
        raise Invalid(
            "This version of Kandev cannot run the text of this run.", problems=_describe_problems(error.problems)
        ) from error
    with transaction.atomic():
        # Locked: of two concurrent requests, the second one finds an active run and is refused.
        row = WorkflowRun.objects.select_for_update(no_key=True, of=("self",)).select_related("task").get(id=run.id)
        if not row.is_over or (row.state == "succeeded" and not path):
            raise Conflict(f"This run is {row.state}. Only failed or cancelled runs can be resumed.")
        if row.task.is_over:
            raise TerminalState("The task of this run is over. Start a new run.")
        if refusal := run_refusal(user, row.team, row.executor, graph_of_run(row)):
            raise ReadOnly(refusal)
        row.note = check_agents(graph_of_run(row), row.team_id, row.agent_profile)
        resume_run(user, row, path)
        wakeups.notify_on_commit()
    return row
