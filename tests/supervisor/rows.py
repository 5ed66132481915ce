"""A team, a task and sessions as the services create them, and helpers that read them back."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeVar

from django.contrib.auth.models import Group, User
from django.db import models
from django.utils import timezone

from executors_app.models import AgentProfile, Executor, ExecutorRunning
from sessions_app.board.services import tasks
from sessions_app.models import (
    Intent,
    Lease,
    Message,
    PermissionRequest,
    Prompt,
    Repository,
    Task,
    TaskSession,
    Turn,
    WaitKey,
    texts_of,
)
from sessions_app.permissions.services import answer_permission
from sessions_app.sessions.rules.situation_facts import Situation
from sessions_app.sessions.rules.situations import situation
from sessions_app.sessions.services.situations import add_page_facts
from sessions_app.sessions.services.status import read_session

MINE = Lease("me", 1)
"""The lease of sessions made by ``running_session``."""

NO_LEASE: Final[dict[str, Any]] = {"owner": "", "lease_expires_at": None}
"""Fields of an execution without a lease."""

_numbers = itertools.count(1)
Row = TypeVar("Row", bound=models.Model)


def make_user(name: str = "ada") -> User:
    """Create a member of the team."""
    user, _ = User.objects.get_or_create(username=name)
    team, _ = Group.objects.get_or_create(name="team")
    user.groups.add(team)
    return user


def make_task(**values: Any) -> Task:
    """Create a task with a repository."""
    team, _ = Group.objects.get_or_create(name="team")
    repository, _ = Repository.objects.get_or_create(team=team, path="/srv/repository", defaults={"name": "it"})
    return tasks.create_task(make_user(), {"title": "Faster parser", "team": team, "repository": repository, **values})


def make_session(
    prompt: str = "", *, task: Task | None = None, runtime: str = "local_standalone", **fields: Any
) -> TaskSession:
    """Create a session through the service: first prompt queued, start ordered. ``fields`` are set on its row."""
    profile, _ = AgentProfile.objects.get_or_create(name="Demo", agent_type="demo")
    executor, _ = Executor.objects.get_or_create(name=runtime, defaults={"runtime": runtime})
    session = tasks.create_session(make_user(), task or make_task(), profile, executor, prompt=prompt)
    return change(session, **fields)


def running_session(prompt: str = "", *, execution: dict[str, Any] | None = None, **fields: Any) -> TaskSession:
    """Create a session whose agent is up and idle; its lease is ``MINE``."""
    task, runtime = fields.pop("task", None), fields.pop("runtime", "local_standalone")
    session = make_session(prompt, task=task, runtime=runtime)
    session.intents.update(done_at=timezone.now(), outcome="fresh", claimed_generation=1)
    row = {
        "status": "ready",
        "status_reason": "",
        "agentctl_url": "unix:/nowhere/agentctl",
        "owner": MINE.owner,
        "generation": MINE.generation,
        "lease_expires_at": timezone.now() + timedelta(hours=1),
        "resume_token": "conversation-1",
    }
    change(execution_of(session), **{**row, **(execution or {})})
    return change(session, **{"state": "WAITING_FOR_INPUT", "launch_id": f"launch-{next(_numbers)}", **fields})


def change(row: Row, **values: Any) -> Row:
    """Set fields of a row directly in the database; return the row read again."""
    if values:
        type(row)._default_manager.filter(pk=row.pk).update(**values)
    return fresh(row)


def fresh(row: Row) -> Row:
    """Return the row read again, without cached relations."""
    found: Row = type(row)._default_manager.get(pk=row.pk)
    return found


def execution_of(session: TaskSession) -> ExecutorRunning:
    """Return the session's execution, read again."""
    return ExecutorRunning.objects.get(session_id=session.id)


def names(session: TaskSession, after: int = 0) -> list[str]:
    """Return the event names after ``after``, without attention events, which ``tests/attention`` covers."""
    behind = session.events.filter(seq__gt=after).exclude(name="session.attention")
    return list(behind.order_by("seq").values_list("name", flat=True))


def last_payload(session: TaskSession, name: str) -> dict[str, Any]:
    """Return the payload of the newest event of that name."""
    return dict(session.events.filter(name=name).order_by("-seq").values_list("payload", flat=True)[0])


def prompt_states(session: TaskSession) -> dict[str, str]:
    """Return the state of every prompt, by message_id."""
    return dict(Prompt.objects.filter(session=session).order_by("id").values_list("message_id", "state"))


def open_orders(session: TaskSession) -> list[tuple[str, dict[str, Any]]]:
    """Return (kind, payload) of every open intent, oldest first."""
    rows = Intent.objects.filter(session=session, done_at=None).order_by("created_at")
    return list(rows.values_list("kind", "payload"))


def runs(session: TaskSession) -> list[tuple[str, str]]:
    """Return (message_id, state) of every run, oldest first."""
    return list(Turn.objects.filter(session=session).order_by("started_at").values_list("message_id", "state"))


def permission_states(session: TaskSession) -> dict[str, str]:
    """Return the state of every permission request, by id."""
    return dict(PermissionRequest.objects.filter(session=session).values_list("id", "state"))


def key_of(session: TaskSession, wait_id: str) -> str:
    """Return the secret of the newest key of a wait."""
    token = WaitKey.objects.filter(session=session, wait_id=wait_id).latest("created_at")
    return token.secret() or ""


def answer(session: TaskSession, permission_id: str, option_id: str, who: str = "ada") -> PermissionRequest:
    """Answer a permission request as a member of the team."""
    return answer_permission(session.id, permission_id, option_id, key_of(session, permission_id), make_user(who))


def conversation(session: TaskSession) -> list[tuple[str, str, dict[str, Any], bool]]:
    """Return (role, text, payload, complete) of every message, in order."""
    messages = list(Message.objects.filter(session=session).order_by("seq"))
    texts = texts_of(messages)
    return [(one.role, texts[one.id], one.payload, one.complete) for one in messages]


def conversation_from_events(session: TaskSession) -> list[tuple[str, str]]:
    """Return (role, text) of every message, as the events alone give them."""
    reports: dict[str, list[str]] = {}
    for name, payload in session.events.order_by("seq").values_list("name", "payload"):
        if name == "session.message.added":
            reports[payload["message_id"]] = [payload["role"], payload["text"]]
        elif name == "session.message.updated":
            reports[payload["message_id"]][1] += payload.get("append", "")
    return [(role, text) for role, text in reports.values()]


def shown_situation(session: TaskSession, **changes: Any) -> Situation:
    """Return the situation that a session's page shows while a supervisor runs that has swept."""
    facts = replace(read_session(session).facts, recovering=False, supervised=True, **changes)
    return situation(add_page_facts(session, facts))
