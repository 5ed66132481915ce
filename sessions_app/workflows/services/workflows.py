"""Save and archive workflows, and start, cancel and resume runs, which the driver carries out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.contrib.auth.models import Group, User
from django.db import IntegrityError, transaction
from django.utils import timezone

from executors_app.models import AgentProfile, Executor
from sessions_app.accounts.authorization import require_write
from sessions_app.board.services.tasks import create_task
from sessions_app.kernel import wakeups
from sessions_app.kernel.services.errors import Conflict, Invalid, ReadOnly, TerminalState
from sessions_app.kernel.services.idempotency import IdempotencyMark, create_once, mark_request
from sessions_app.models import Repository, resolve_for_workflow
from sessions_app.workflows.engine.resume import NothingToResume, records_to_resume
from sessions_app.workflows.language.diagnostics import Diagnostic, InvalidWorkflow
from sessions_app.workflows.language.graph import WorkflowGraph as Graph
from sessions_app.workflows.language.limits import MAX_BYTES
from sessions_app.workflows.language.values import ConversionError, convert_value
from sessions_app.workflows.loader.loading import LoadResult
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.services import run_records, trigger_settings
from sessions_app.workflows.services.assignment import default_executor, run_refusal
from sessions_app.workflows.services.loading import load_text
from sessions_app.workflows.services.run_conditions import check_agents, check_workplace
from sessions_app.workflows.services.run_records import RECORD_FIELDS, graph_of_run, records_from_rows


def resolve_inputs(graph: Graph, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a run: declared ones converted to their types, with defaults for omitted or empty ones.

    Undeclared inputs stay as they are. Raises Invalid, naming every input that is missing or has the wrong type.
    """
    values, problems = dict(given), []
    for port in graph.inputs:
        value = given.get(port.name)
        try:
            value = convert_value(port.default if value in (None, "") else value, port.type)
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
    run_records.resolve_run_failed(run)
    run.state, run.error, run.outputs = "queued", "", {}
    run.ended_at = run.cancel_requested_at = None
    run.round += 1
    run.version += 1
    run.started_by = user or run.started_by
    run.save()


SAVED_FIELDS: Final = ("name", "description", "repository", "agent_profile", "executor")
FILES_LIMIT: Final = 4 << 20
"""Maximum total number of characters in all files of a workflow."""
INPUTS_LIMIT: Final = 1 << 20
"""Maximum number of characters of a run's inputs as JSON."""


def save_workflow(
    user: User, values: Mapping[str, Any], workflow: Workflow | None = None, revision: int | None = None
) -> tuple[Workflow, tuple[Diagnostic, ...]]:
    """Create or change a workflow, and return it with its problems; an invalid text is saved, but cannot be run.

    ``values`` can have team (of a new workflow), text, files, name, description, repository, agent_profile, executor
    and triggers_enabled; omitted ones stay as they are. ``revision`` is the one that the user has read. A change of
    what its triggers start pauses them (see ``trigger_settings``). Raises ReadOnly, Invalid, ChecksUnavailable, and
    Conflict for an old revision, a name that is taken, or an archived workflow.
    """
    team = workflow.team if workflow is not None else values["team"]
    require_write(user, team)
    text, files = (values.get(name, getattr(workflow, name, None)) for name in ("text", "files"))
    _check_size(text or "", files or {})
    # Before the transaction, which then finds the result in the cache: no row stays locked while a text is loaded.
    load_text(text or "", files or {})
    with transaction.atomic():
        if workflow is not None:
            row = _lock_workflow(workflow, revision)
        else:
            row = Workflow(team=team, created_by=user)
        loaded = _assign_values(row, values, is_new=workflow is None)
        _check_workplace(row, row.repository, row.agent_profile)
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
    _check_size(row.text, row.files)
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


def _check_size(text: str, files: Mapping[str, str]) -> None:
    if "\0" in text or len(text.encode(errors="replace")) > MAX_BYTES:
        raise Invalid(f"The text is larger than {MAX_BYTES >> 10} KiB, or contains a zero byte.", field="text")
    if not all(isinstance(name, str) and isinstance(one, str) and "\0" not in one for name, one in files.items()):
        raise Invalid("Files must be an object of texts by path, without zero bytes.", field="files")
    if sum(map(len, files.values())) > FILES_LIMIT:
        raise Invalid(f"The files are larger than {FILES_LIMIT >> 20} MiB in total.", field="files")


def _check_workplace(row: Workflow | WorkflowRun, repository: Repository | None, profile: AgentProfile | None) -> None:
    """Check that the repository belongs to the team, and the profile to the team or to all teams."""
    if repository is not None and repository.team_id != row.team_id:
        raise Invalid("This repository belongs to another team.", field="repository")
    if profile is not None and profile.team_id not in (None, row.team_id):
        raise Invalid("This agent profile belongs to another team.", field="agent_profile")


def archive_workflow(user: User, workflow: Workflow) -> Workflow:
    """Archive a workflow. Its runs stay, and its triggers no longer start it."""
    require_write(user, workflow.team)
    with transaction.atomic():
        Workflow.objects.filter(id=workflow.id, archived_at=None).update(
            archived_at=timezone.now(), triggers_enabled=False, triggers_paused="", next_run_at=None
        )
        resolve_for_workflow(workflow, "archived")
    workflow.refresh_from_db()
    return workflow


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
    _check_size(text, files or {})
    _check_inputs(inputs or {})
    loaded = load_text(text, files or {})
    if loaded.workflow is None:
        raise Invalid(
            "The workflow has errors, so it cannot be run.", field="text", problems=_describe_problems(loaded.problems)
        )
    graph = loaded.workflow
    given = {"timestamp": timezone.now().isoformat(), "type": trigger, "text": "", "params": {}}
    values = {**given, **resolve_inputs(graph, inputs or {})}
    place = default_executor(executor or (workflow.executor if workflow else None))
    if place is None:
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
        revision=workflow.revision if workflow else 0,
        agent_profile=agent_profile or (workflow.agent_profile if workflow else None),
        executor=place,
    )
    repository = repository or (workflow.repository if workflow else None)
    _check_run_possible(user, run, graph, repository)
    if mark is None:
        given_values = {"text": text, "files": _sorted_json(files), "inputs": _sorted_json(inputs)}
        mark = mark_request(key, {**given_values, "workflow": workflow and workflow.id})

    def make(mark: IdempotencyMark) -> WorkflowRun:
        run.task = create_task(user, {"team": team, "title": f"Workflow: {run.name}"[:300], "repository": repository})
        for field, value in mark.items():
            setattr(run, field, value)
        run.save(force_insert=True)
        return run

    with transaction.atomic():
        found, is_new = create_once(WorkflowRun.objects.filter(team=team), mark, make)
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


def _check_run_possible(user: User, run: WorkflowRun, graph: Graph, repository: Repository | None) -> None:
    """Check that the run is possible at all, before anyone waits for it."""
    if run.workflow is not None and (run.workflow.archived_at is not None or run.workflow.team_id != run.team_id):
        raise Invalid("This workflow is archived, or belongs to another team.", field="workflow")
    _check_workplace(run, repository, run.agent_profile)
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
