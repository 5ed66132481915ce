"""Save and archive workflows, and start, cancel and resume runs; the driver carries runs out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.utils import timezone

from executors_app.models import AgentProfile, Executor
from executors_app.plugins import UnknownPlugin, runtime
from executors_app.runtimes import SupportsSharedWorktrees
from sessions_app.accounts.authorization import require_write
from sessions_app.models import Repository, resolve_for_workflow, wakeups
from sessions_app.services.catalogue import profiles_of
from sessions_app.services.errors import Conflict, Invalid, ReadOnly, TerminalState, WorktreeNotShared
from sessions_app.services.idempotency import IdempotencyMark, create_once
from sessions_app.services.tasks import create_task
from sessions_app.workflows.engine.resume import NothingToResume, records_to_resume
from sessions_app.workflows.language.diagnostics import Diagnostic, InvalidWorkflow
from sessions_app.workflows.language.graph import WorkflowGraph as Graph
from sessions_app.workflows.language.limits import MAX_BYTES
from sessions_app.workflows.language.schema import Port
from sessions_app.workflows.language.values import ConversionError, convert_value
from sessions_app.workflows.loader.loading import LoadResult
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.services import run_records, trigger_settings
from sessions_app.workflows.services.assignment import choose_agents, default_executor, demo_agent_note, run_refusal
from sessions_app.workflows.services.loading import load_text
from sessions_app.workflows.services.run_records import (
    RECORD_FIELDS,
    graph_of_run,
    node_types_of,
    records_from_rows,
    run_document,
)


def resolve_inputs(graph: Graph, given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given with each declared input as its type, and with the default of each that was left out or is empty.

    What is not declared stays as it is. Raises Invalid, naming every input that is missing or does not fit.
    """
    values, problems = dict(given), []
    for port in graph.inputs:
        try:
            value = _input_value(port, given.get(port.name))
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


def _input_value(declared: Port, given: Any) -> Any:
    value = declared.default if given in (None, "") else given
    return convert_value(value, declared.type)


def resume_run(user: Any, run: WorkflowRun, path: str) -> None:
    """Forget what is done again, and put the run into the line of those to be driven. Raises Invalid."""
    rows = {row.path: row for row in run.node_runs.order_by("position")}
    try:
        kept = records_to_resume(graph_of_run(run), records_from_rows(rows.values()), path)
    except NothingToResume as error:
        raise Invalid(f"Nothing can be done again: {error}.", field="path") from error
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


__all__ = ["archive_workflow", "cancel_run", "retry_run", "run_document", "save_workflow", "start_run"]
WORKSPACE_NODE_TYPES: Final = frozenset({"shell", "agent"})
"""Types of nodes that want a workspace."""
SAVED_FIELDS: Final = ("name", "description", "repository", "agent_profile", "executor")
FILES_LIMIT: Final = 4 << 20
"""Characters of all files of a workflow together."""
MAX_NODES_LISTED: Final = 5
"""Nodes that an error names."""
INPUTS_LIMIT: Final = 1 << 20
"""Characters of a run's inputs as JSON."""


def save_workflow(
    user: Any, values: Mapping[str, Any], workflow: Workflow | None = None, revision: int | None = None
) -> tuple[Workflow, tuple[Diagnostic, ...]]:
    """Make a workflow, or change one; what is left out stays. A text that is not valid is kept and cannot be run.

    ``values``: team (of a new one), text, files, name, description, repository, agent_profile, executor,
    triggers_enabled. ``revision`` is the one that was read. A change of what its triggers start pauses them
    (``workflow_schedules``). Raises ReadOnly, Invalid, ChecksUnavailable, Conflict for a revision that is old, for a
    name that is taken, and for what was archived.
    """
    team = workflow.team if workflow is not None else values["team"]
    require_write(user, team)
    text, files = (values.get(name, getattr(workflow, name, None)) for name in ("text", "files"))
    _check_size(text or "", files or {})
    # Before the transaction, in which the same is found in memory: no row is locked while a text is loaded.
    load_text(text or "", files or {})
    with transaction.atomic():
        row = _lock_workflow(workflow, revision) if workflow is not None else Workflow(team=team, created_by=user)
        loaded = _assign_values(row, values, is_new=workflow is None)
        _check_workplace(row, row.repository, row.agent_profile)
        trigger_settings.update_triggers(user, row, loaded.workflow, values.get("triggers_enabled"))
        try:
            with transaction.atomic():
                row.save()
        except IntegrityError as error:
            raise Conflict(f"The team has a workflow “{row.name}” already.", field="name") from error
        trigger_settings.sync_attention(row)
    return row, loaded.problems


def _lock_workflow(workflow: Workflow, revision: int | None) -> Workflow:
    row = trigger_settings.lock_workflow(workflow)
    if row.archived_at is not None:
        raise Conflict("This workflow was archived.")
    if revision is not None and revision != row.revision:
        raise Conflict("Somebody has changed it since you read it. Load it anew.", revision=row.revision)
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
        raise Invalid("The workflow has no name.", field="name")
    if not is_new and (row.text, row.files) != before:
        row.revision += 1
    return loaded


def _check_size(text: str, files: Mapping[str, str]) -> None:
    if "\0" in text or len(text.encode(errors="replace")) > MAX_BYTES:
        raise Invalid(f"The text has more than {MAX_BYTES >> 10} KiB, or is no text.", field="text")
    if not all(isinstance(name, str) and isinstance(one, str) and "\0" not in one for name, one in files.items()):
        raise Invalid("The files are texts by their paths.", field="files")
    if sum(map(len, files.values())) > FILES_LIMIT:
        raise Invalid(f"The files have more than {FILES_LIMIT >> 20} MiB.", field="files")


def _check_workplace(row: Workflow | WorkflowRun, repository: Repository | None, profile: AgentProfile | None) -> None:
    """What it names is its team's, or everybody's."""
    if repository is not None and repository.team_id != row.team_id:
        raise Invalid("This repository belongs to another team.", field="repository")
    if profile is not None and profile.team_id not in (None, row.team_id):
        raise Invalid("This agent profile belongs to another team.", field="agent_profile")


def archive_workflow(user: Any, workflow: Workflow) -> Workflow:
    """Put a workflow away; its runs stay, and its triggers start nothing more."""
    require_write(user, workflow.team)
    with transaction.atomic():
        Workflow.objects.filter(id=workflow.id, archived_at=None).update(
            archived_at=timezone.now(), triggers_enabled=False, triggers_paused="", next_run_at=None
        )
        resolve_for_workflow(workflow, "archived")
    workflow.refresh_from_db()
    return workflow


def start_run(
    user: Any,
    *,
    team: Any,
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
) -> tuple[WorkflowRun, bool]:
    """A new run of a text, on a task of its own, and what was made before with ``key``; (run, whether it is new).

    Raises ReadOnly, ChecksUnavailable, and Invalid: with ``problems`` for a text that cannot be run, naming a field for
    the rest.
    """
    require_write(user, team)
    _check_size(text, files or {})
    _check_inputs(inputs or {})
    loaded = load_text(text, files or {}, name or "workflow")
    if loaded.workflow is None:
        raise Invalid(
            "The workflow cannot be run as it is written.", field="text", problems=_describe_problems(loaded.problems)
        )
    graph = loaded.workflow
    run = WorkflowRun(
        team=team,
        workflow=workflow,
        name=name or graph.name,
        text=text,
        files=dict(files or {}),
        inputs=_trigger_inputs(trigger, resolve_inputs(graph, inputs or {})),
        trigger=trigger,
        started_by=user,
        revision=workflow.revision if workflow else 0,
        agent_profile=agent_profile or (workflow.agent_profile if workflow else None),
        executor=_executor_for_run(executor or (workflow.executor if workflow else None)),
    )
    repository = repository or (workflow.repository if workflow else None)
    _check_run_possible(user, run, graph, repository)
    asked = {"text": text, "files": _sorted(files), "inputs": _sorted(inputs), "workflow": workflow and workflow.id}

    def make(mark: IdempotencyMark) -> WorkflowRun:
        return _create_run(user, run, repository, mark)

    with transaction.atomic():
        found, is_new = create_once(WorkflowRun.objects.filter(team=team), key, asked, make)
        if is_new:
            wakeups.notify_on_commit()
    return found, is_new


def _create_run(user: Any, run: WorkflowRun, repository: Repository | None, mark: IdempotencyMark) -> WorkflowRun:
    values = {"team": run.team, "title": f"Workflow: {run.name}"[:300], "repository": repository}
    run.task = create_task(user, values)
    for name, value in mark.items():
        setattr(run, name, value)
    run.save(force_insert=True)
    return run


def _trigger_inputs(trigger: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"timestamp": timezone.now().isoformat(), "type": trigger, "text": "", "params": {}, **inputs}


def _sorted(values: Mapping[str, Any] | None) -> str:
    return json.dumps(dict(values or {}), sort_keys=True)


def _describe_problems(problems: Sequence[Diagnostic]) -> list[str]:
    return [str(diagnostic) for diagnostic in problems]


def _check_inputs(inputs: Mapping[str, Any]) -> None:
    try:
        text = json.dumps(dict(inputs), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid("The inputs cannot be written as JSON.", field="inputs") from error
    if len(text) > INPUTS_LIMIT or "\\u0000" in text:
        raise Invalid(f"The inputs have more than {INPUTS_LIMIT >> 20} MiB, or hold U+0000.", field="inputs")


def _executor_for_run(named: Executor | None) -> Executor:
    found = default_executor(named)
    if found is None:
        raise Invalid("There is no executor yet. Staff can add one.", field="executor")
    return found


def _check_run_possible(user: Any, run: WorkflowRun, graph: Graph, repository: Repository | None) -> None:
    """Whether it could be done at all, so that nobody waits for what cannot be."""
    if run.workflow is not None and (run.workflow.archived_at is not None or run.workflow.team_id != run.team_id):
        raise Invalid("This workflow was archived, or belongs to another team.", field="workflow")
    _check_workplace(run, repository, run.agent_profile)
    working = node_types_of(graph) & WORKSPACE_NODE_TYPES
    if working and repository is None:
        needy = " and ".join(sorted(working))
        raise Invalid(f"Its {needy} nodes want a workspace. Name a repository.", field="repository")
    if "agent" in working and not _shares_worktrees(run.executor):
        raise WorktreeNotShared(
            f"The agents of a workflow work in one worktree, which sessions on {run.executor.runtime} cannot share. "
            "Choose another executor; on this one only workflows without agents run.",
            runtime=run.executor.runtime,
        )
    if trouble := run_refusal(user, run.team, run.executor, graph):
        raise ReadOnly(trouble)
    _check_agents(run, graph)


def _check_agents(run: WorkflowRun, graph: Graph) -> None:
    """Somebody can work for each agent node: else the turns of those before it would be paid for in vain."""
    profiles = profiles_of(run.team_id).order_by("name", "id") if "agent" in node_types_of(graph) else ()
    found = choose_agents(graph, list(profiles), run.agent_profile)
    if found.missing:
        shown = " ".join(found.missing[:MAX_NODES_LISTED])
        raise Invalid(f"The workflow cannot be run here. {shown}", field="agent_profile", problems=list(found.missing))
    run.note = demo_agent_note(found.stand_ins)


def _shares_worktrees(executor: Executor) -> bool:
    try:
        return isinstance(runtime(executor.runtime), SupportsSharedWorktrees)
    except UnknownPlugin:
        return False


def cancel_run(user: Any, run: WorkflowRun) -> WorkflowRun:
    """Ask for a run to end, with all that works for it; one that is over stays as it is."""
    require_write(user, run.team)
    with transaction.atomic():
        row = WorkflowRun.objects.select_for_update(no_key=True).get(id=run.id)
        if not row.is_over and row.cancel_requested_at is None:
            row.cancel_requested_at = timezone.now()
            row.version += 1
            row.save(update_fields=["cancel_requested_at", "version"])
            wakeups.notify_on_commit()
    return row


def retry_run(user: Any, run: WorkflowRun, path: str = "") -> WorkflowRun:
    """Go on with a run that has failed or was cancelled, from what failed, or from the node run at ``path``.

    What finished before it is kept with its sessions; what is done again is asked anew. Raises ReadOnly, Invalid,
    Conflict for a run that is under way or has succeeded, TerminalState where its task is over.
    """
    require_write(user, run.team)
    try:
        graph_of_run(run)  # before the transaction, for which it is remembered
    except InvalidWorkflow as error:
        raise Invalid(
            "The text of this run cannot be run any more.", problems=_describe_problems(error.problems)
        ) from error
    with transaction.atomic():
        row = WorkflowRun.objects.select_for_update(no_key=True, of=("self",)).select_related("task").get(id=run.id)
        if not row.is_over or (row.state == "succeeded" and not path):
            raise Conflict(f"This run is {row.state}. Only one that has ended without success can go on.")
        if row.task.is_over:
            raise TerminalState("The task of this run is over. Start a new run.")
        if trouble := run_refusal(user, row.team, row.executor, graph_of_run(row)):
            raise ReadOnly(trouble)
        _check_agents(row, graph_of_run(row))
        resume_run(user, row, path)
        wakeups.notify_on_commit()
    return row
