"""The sessions of a run: its workspace, those of its agents, and their rest when it has ended."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from django.db import transaction

from sessions_app.domain.resumability import Mode
from sessions_app.domain.states import ENDED_STATES, DesiredState, PromptState
from sessions_app.models import NodeRun, TaskSession, WorkflowRun
from sessions_app.services import intents, prompts, tasks
from sessions_app.services import workflow_runners as runners
from sessions_app.services.catalogue import profiles_for
from sessions_app.services.errors import SessionsError
from sessions_app.supervisor.workflows import chains


class CannotAsk(Exception):
    """The work of a node cannot be asked for; the message is for people."""


def name_of(run: WorkflowRun, row: NodeRun) -> str:
    """The message_id or job_id of what a node asks: the same however often this attempt is written."""
    return str(uuid.uuid5(run.id, f"{run.round}:{row.path}:{row.attempt}"))


def workspace_of(run: WorkflowRun) -> TaskSession:
    """The session in whose worktree all nodes work, wanted to be open. Raises CannotAsk."""
    if run.workspace is None:
        profile = run.agent_profile or profiles_for(run.task).order_by("name", "id").first()
        if profile is None:
            raise CannotAsk("there is no agent profile yet; staff can add one")
        mark = {"idempotency_key": f"workflow:{run.id}"}
        with transaction.atomic():
            made = tasks.create_session(
                run.started_by, run.task, profile, run.executor, policy="auto", has_agent=False, mark=mark
            )
            WorkflowRun.objects.filter(id=run.id).update(workspace=made)
        run.workspace = made
    elif run.workspace.desired_state == DesiredState.STOPPED:
        intents.resume(run.workspace.id, run.started_by, Mode.AUTO)
        run.workspace.refresh_from_db()
    return run.workspace


def ask_agent(run: WorkflowRun, row: NodeRun, prompt: str) -> None:
    """Put a node's prompt into the ledger of its session, a new one where it names none; in the caller's transaction.

    Raises CannotAsk.
    """
    wanted = str(row.request.get("sessionId") or "")
    try:
        session = _known(run, wanted) if wanted else _new(run, row)
        message_id = name_of(run, row)
        intents.prompt(session.id, message_id, prompt, run.started_by)
    except SessionsError as error:
        raise CannotAsk(error.message) from error
    row.session, row.message_id = session, message_id


def _known(run: WorkflowRun, wanted: str) -> TaskSession:
    """A session of the run, or one of its team that the run was given by whoever started it."""
    key = _uuid(wanted)
    session = TaskSession.objects.select_related("task").filter(id=key).first() if key else None
    own = session is not None and session.task_id == run.task_id and session.id != run.workspace_id
    given = session is not None and session.task.team_id == run.team_id and wanted in _texts(run.inputs)
    if session is None or not (own or given):
        raise CannotAsk(f"“{wanted[:80]}” is no session of this run, and none that the run was given")
    return session


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def _texts(value: Any) -> Iterator[str]:
    """Every text within a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _new(run: WorkflowRun, row: NodeRun) -> TaskSession:
    chosen = _choice(run, str(row.request.get("runner") or ""), str(row.request.get("model") or ""))
    return tasks.create_session(
        run.started_by,
        run.task,
        chosen.profile,
        run.executor,
        policy="auto",
        model=chosen.model,
        shares_worktree_of=workspace_of(run),
        mark={"idempotency_key": name_of(run, row)},
    )


def _choice(run: WorkflowRun, runner: str, model: str) -> runners.Choice:
    try:
        return runners.choose(list(profiles_for(run.task).order_by("name", "id")), run.agent_profile, runner, model)
    except runners.NoSuchAgent as error:
        raise CannotAsk(str(error)) from error


def take_back(row: NodeRun) -> None:
    """End what a node has asked of its agent: a prompt that waits is withdrawn, a turn cancelled."""
    if row.session is None or not row.message_id:
        return
    asked = row.session.prompts.filter(message_id=row.message_id).first()
    if asked is None:
        return
    last = chains.last_of(asked)
    if last.state == PromptState.QUEUED:
        prompts.withdraw(row.session.id, last.message_id)
    elif row.session.runs.filter(message_id=last.message_id, ended_at=None).exists():
        intents.cancel(row.session.id, None)


def put_to_rest(run: WorkflowRun) -> None:
    """The run is over: none of its sessions is wanted any more, and nothing starts them again."""
    for session in run.task.sessions.exclude(state__in=ENDED_STATES).order_by("id"):
        if session.desired_state == DesiredState.RUNNING:
            intents.stop(session.id, None)
