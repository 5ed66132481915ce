"""The tools that change something; each stores a request, which a supervisor carries out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from django.contrib.auth.models import Group, User
from django.db.transaction import atomic
from rest_framework.serializers import BaseSerializer

from sessions_app.accounts.authorization import may_write_session
from sessions_app.board.api.serializers import NewTaskSerializer
from sessions_app.board.services import tasks
from sessions_app.catalogue.services.repositories import only_or_default
from sessions_app.kernel.services.errors import NotFound, ReadOnly
from sessions_app.mcp_server import arguments, results
from sessions_app.mcp_server.reading import view_session, visible_session
from sessions_app.models import Repository, Task, TaskSession
from sessions_app.permissions import services as permissions
from sessions_app.prompts import services as prompts
from sessions_app.sessions.api.serializers import NewSessionSerializer
from sessions_app.sessions.services import intents


def _writable_session(user: User, session_id: UUID) -> TaskSession:
    """Return a session that the user may change. Raises NotFound, and ReadOnly for a viewer."""
    session = visible_session(user, session_id)
    if not may_write_session(user, session):
        raise ReadOnly
    return session


def start_task(user: User, values: arguments.StartTaskArguments) -> results.StartedTask:
    """Create a task and its first session, both or neither, once per ``client_key`` and team."""
    prompts.validate_prompt_text(values.prompt, field="prompt")
    task_values = _task_values(user, values)
    key = task_values.pop("idempotency_key")
    team = task_values["team"]
    task_values["repository"] = task_values["repository"] or _usual_repository(team, key)
    draft = Task(team=team, repository=task_values["repository"])
    task = Task.objects.filter(team=team, idempotency_key=key).first() or draft
    choice, pool = _choose(user, task, values)
    session_values = _validated(NewSessionSerializer, {**choice, "prompt": values.prompt}, user, task=task)
    profile, executor = session_values["agent_profile"], session_values["executor"]
    task_mark = tasks.mark_task(task_values, key)
    new_values = tasks.NewSessionValues(prompt=values.prompt, executor_pool=pool)
    session_mark = tasks.mark_session(profile, executor, key, **new_values)
    with atomic():
        task, _ = tasks.create_task_once(user, task_values, task_mark)
        session, created = tasks.create_session_once(user, task, profile, executor, session_mark, **new_values)
    first = session.prompts.order_by("id").values_list("message_id", flat=True).first()
    return results.StartedTask(task_id=task.id, session_id=session.id, message_id=first or "", created=created)


def _task_values(user: User, values: arguments.StartTaskArguments) -> dict[str, Any]:
    """Return the values of the task as the REST API checks them."""
    body: dict[str, Any] = {
        "title": values.title,
        "description": values.prompt,
        "base_branch": values.base_branch,
        "idempotency_key": values.client_key,
        "repository": values.repository_id,
    }
    if values.team is not None:
        body["team"] = values.team
    return _validated(NewTaskSerializer, body, user)


# A repeated call must use the same values as the first one, although the defaults may have changed since. So both
# functions first return what the call with this key has created.


def _usual_repository(team: Group, key: str) -> Repository | None:
    """Return the team's default repository, or its only one."""
    earlier = Task.objects.filter(team=team, idempotency_key=key).select_related("repository").first()
    if earlier is not None:
        return earlier.repository
    return only_or_default(Repository.objects.filter(team=team))


def _choose(user: User, task: Task, values: arguments.StartTaskArguments) -> tuple[dict[str, UUID], str]:
    """Return the ids of the profile and the executor, and the pool of an executor that nobody has named.

    They are those named, else what the user chose last.
    """
    earlier = task.sessions.filter(idempotency_key=values.client_key).first()
    if earlier is not None:
        profile_id, executor_id, pool = earlier.agent_profile_id, earlier.executor_id, earlier.executor_pool
    else:
        profile, executor = tasks.usual_choice(user, task)
        profile_id, executor_id, pool = profile.id, executor.id, executor.pool
    if values.executor_id is not None:
        pool = ""
    choice = {
        "agent_profile": values.agent_profile_id or profile_id,
        "executor": values.executor_id or executor_id,
    }
    return choice, pool


def _validated(kind: type[BaseSerializer[Any]], data: dict[str, Any], user: User, **context: Any) -> dict[str, Any]:
    """Check the values with the serializer of the REST API. Raises its ValidationError, and ReadOnly."""
    serializer = kind(data=data, context={"request": SimpleNamespace(user=user), **context})
    serializer.is_valid(raise_exception=True)
    checked: dict[str, Any] = serializer.validated_data
    return checked


def prompt_session(user: User, values: arguments.PromptSessionArguments) -> results.QueuedPrompt:
    """Queue a prompt, or hand it to the running turn, once per ``message_id``."""
    session = _writable_session(user, values.session_id)
    row, created = prompts.queue_prompt(
        session.id,
        values.message_id,
        values.text,
        user,
        ends_permission=values.cancel_open_question,
        now=values.deliver == "now",
    )
    return results.QueuedPrompt(
        session_id=session.id,
        message_id=row.message_id,
        state=row.state,
        created=created,
        steered_into=row.steered_into,
    )


def answer_permission(user: User, values: arguments.AnswerPermissionArguments) -> results.PermissionAnswer:
    """Answer a permission request or a question; the same answer again changes nothing."""
    session = _writable_session(user, values.session_id)
    request = session.permissions.filter(id=values.permission_id).first()
    if request is None:
        raise NotFound("The session has no such permission request.")
    key = permissions.permission_keys([request]).get(request.id)
    # The service checks the state of the key: whoever may answer could read it from the API.
    secret = ""
    if key is not None:
        secret = key.secret() or ""
    answered = permissions.answer_permission(
        session.id, request.id, values.option_id, secret, user, content=values.content
    )
    return results.PermissionAnswer(permission_id=answered.id, option_id=values.option_id, state=answered.state)


def resume_session(user: User, values: arguments.ResumeSessionArguments) -> results.ActionResult:
    """Request that a session runs again."""
    session = _writable_session(user, values.session_id)
    intents.request_resume(session.id, user, values.mode)
    return _result(user, values)


def cancel_turn(user: User, values: arguments.SessionArguments) -> results.ActionResult:
    """Request the end of the active turn; the session stays."""
    session = _writable_session(user, values.session_id)
    cancelling = intents.request_cancel(session.id, user)
    return _result(user, values, cancelling=cancelling)


def stop_session(user: User, values: arguments.SessionArguments) -> results.ActionResult:
    """Request the end of the session's agent."""
    session = _writable_session(user, values.session_id)
    intents.request_stop(session.id, user)
    return _result(user, values)


def _result(user: User, values: arguments.SessionArguments, *, cancelling: bool | None = None) -> results.ActionResult:
    session = visible_session(user, values.session_id)
    shown = view_session(session, user).situation
    return results.ActionResult(
        session_id=session.id,
        state=session.state,
        status_sentence=shown.text,
        next_step=shown.next_step,
        cancelling=cancelling,
    )
