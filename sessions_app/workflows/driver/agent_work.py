"""Create the sessions of a run, send the prompts of its nodes, and end both."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from django.db import transaction

from sessions_app.agents.services.profiles import enabled, profiles_for
from sessions_app.board.services import tasks
from sessions_app.kernel.rules.parsers import parse_uuid
from sessions_app.kernel.rules.states import ENDED_STATES, DesiredState, PromptState
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.models import TaskSession
from sessions_app.prompts import services as prompts
from sessions_app.recovery.rules.resumability import Mode
from sessions_app.sessions.services import intents
from sessions_app.workflows.driver import prompt_progress
from sessions_app.workflows.models import NodeRun, WorkflowRun
from sessions_app.workflows.services import agent_choice


class WorkNotPossible(Exception):
    """The work of a node cannot be requested; users see the message."""


def work_id(run: WorkflowRun, row: NodeRun) -> str:
    """Return the message_id or job_id of an attempt.

    It is derived, not random: a step that is repeated after a crash asks for the same prompt or job again, and the
    ledger or agentctl recognises it.
    """
    return str(uuid.uuid5(run.id, f"{run.round}:{row.path}:{row.attempt}"))


def workspace_session(run: WorkflowRun) -> TaskSession:
    """Return the session in whose worktree all nodes work, and ask for it to be open. Raises WorkNotPossible."""
    if run.workspace is None:
        profile = run.agent_profile or profiles_for(run.task).order_by("name", "id").first()
        if profile is None:
            raise WorkNotPossible("there is no agent profile yet; ask staff to add one")
        mark = {"idempotency_key": f"workflow:{run.id}"}
        # A savepoint: if the session is refused, nothing of it remains, but the rest of the step commits.
        with transaction.atomic():
            workspace = tasks.create_session(
                run.started_by, run.task, profile, run.executor, policy="auto", has_agent=False, mark=mark
            )
            WorkflowRun.objects.filter(id=run.id).update(workspace=workspace)
        run.workspace = workspace
    elif run.workspace.desired_state == DesiredState.STOPPED:
        intents.request_resume(run.workspace.id, run.started_by, Mode.AUTO)
        run.workspace.refresh_from_db()
    return run.workspace


def send_node_prompt(run: WorkflowRun, row: NodeRun, prompt: str) -> None:
    """Queue the prompt of a node in its session, or in a new session if it names none. Raises WorkNotPossible.

    It writes in the caller's transaction: prompt and node run are stored together or not at all.
    """
    session_id = str(row.request.get("sessionId") or "")
    try:
        if session_id:
            session = _find_session(run, session_id)
        else:
            session = _create_session(run, row)
        message_id = work_id(run, row)
        prompts.queue_prompt(session.id, message_id, prompt, run.started_by, of_workflow=True)
    except SessionsError as error:
        raise WorkNotPossible(error.message) from error
    row.session, row.message_id = session, message_id


def _find_session(run: WorkflowRun, session_id: str) -> TaskSession:
    """Return a session of the run, or a session of its team that was passed in the inputs of the run."""
    key = parse_uuid(session_id)
    if key:
        session = TaskSession.objects.select_related("task").filter(id=key).first()
        if session is not None and _may_use_session(run, session, session_id):
            return session
    raise WorkNotPossible(f"“{session_id[:80]}” is not a session of this run, and was not passed in its inputs")


def _may_use_session(run: WorkflowRun, session: TaskSession, session_id: str) -> bool:
    is_own = session.task_id == run.task_id and session.id != run.workspace_id
    return is_own or (session.task.team_id == run.team_id and session_id in _texts_in(run.inputs))


def _texts_in(value: Any) -> Iterator[str]:
    """Yield every text within a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_in(inner)


def _create_session(run: WorkflowRun, row: NodeRun) -> TaskSession:
    runner = str(row.request.get("runner") or "")
    if not runner and run.agent_profile is not None and run.agent_profile.disabled_at is not None:
        raise WorkNotPossible(
            f"The agent profile “{run.agent_profile.name}” was disabled after this run had started. Ask an "
            "administrator to enable it, then resume the run."
        )
    model = str(row.request.get("model") or "")
    profiles = list(enabled(profiles_for(run.task)).order_by("name", "id"))
    try:
        chosen = agent_choice.choose_agent(profiles, run.agent_profile, runner, model)
    except agent_choice.NoMatchingAgent as error:
        raise WorkNotPossible(str(error)) from error
    return tasks.create_session(
        run.started_by,
        run.task,
        chosen.profile,
        run.executor,
        policy="auto",
        model=chosen.model,
        shares_worktree_of=workspace_session(run),
        mark={"idempotency_key": work_id(run, row)},
    )


def withdraw_prompt(row: NodeRun) -> None:
    """End the work that a node has requested from its agent: withdraw a queued prompt, or cancel the turn."""
    if row.session is None or not row.message_id:
        return
    prompt = row.session.prompts.filter(message_id=row.message_id).first()
    if prompt is None:
        return
    last = prompt_progress.last_prompt_of_chain(prompt)
    if last.state == PromptState.QUEUED:
        prompts.withdraw_prompt(row.session.id, last.message_id)
    elif row.session.runs.filter(message_id=last.message_id, ended_at=None).exists():
        intents.request_cancel(row.session.id, None)


def stop_run_sessions(run: WorkflowRun) -> None:
    """Stop every session of a run that is over. Nothing restarts them automatically."""
    for session in run.task.sessions.exclude(state__in=ENDED_STATES).order_by("id"):
        if session.desired_state == DesiredState.RUNNING:
            intents.request_stop(session.id, None)
