"""Where an imported session belongs: team, task, repository, profile and executor, found by name or made inert.

What is made here can run nothing: a team without members, a profile without a command, arguments or
environment of its own, an executor with room for no agent. Repositories are opened by staff alone.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Final

from django.contrib.auth.models import Group, User
from django.db.models import Q

from executors_app.models import AgentProfile, Executor
from executors_app.plugins import agent_types, runtimes
from sessions_app.domain.states import TaskState
from sessions_app.models import Repository, Task
from sessions_app.services.portable.values import Values

DEFAULT_TEAM: Final = "Imported"
INERT_RUNTIME: Final = "local_standalone"
INERT_TYPE: Final = "custom_acp"


@dataclass
class Places:
    """What a session hangs on, and what there is to say about it."""

    task: Task
    profile: AgentProfile
    executor: Executor
    owner: User | None
    notes: list[str] = field(default_factory=list)


def places_of(session_id: uuid.UUID, snapshot: Values, team_name: str) -> Places:
    """Find or make them; ``team_name`` is for a record that names no team."""
    notes: list[str] = []
    team = _team(snapshot.inner("task").text("team", 150) or team_name, notes)
    task = _task(session_id, snapshot, team, notes)
    profile = _profile(snapshot, team, notes)
    executor = _executor(snapshot.inner("executor"), notes)
    return Places(task, profile, executor, user(snapshot.text("owner")), notes)


def user(name: str) -> User | None:
    """The user of that name, if there is one."""
    return User.objects.filter(username=name).first() if name else None


def _team(name: str, notes: list[str]) -> Group:
    team, made = Group.objects.get_or_create(name=name)
    if made:
        notes.append(f"team “{name}” was made, without members")
    return team


def _task(session_id: uuid.UUID, snapshot: Values, team: Group, notes: list[str]) -> Task:
    told = snapshot.inner("task")
    wanted = told.id("id")
    found = Task.objects.filter(id=wanted, team=team).first() if wanted else None
    if found is not None:
        return found
    if wanted is None or Task.objects.filter(id=wanted).exists():  # nobody brings a session into another team's task
        wanted = uuid.uuid5(session_id, "task")
    task, made = Task.objects.get_or_create(
        id=wanted,
        defaults={
            "title": told.text("title", 300) or snapshot.text("title", 300) or "Imported session",
            "description": told.text("description"),
            "team": team,
            "repository": _repository(told, snapshot, team, notes),
            "base_branch": told.text("base_branch", 255),
            "state": told.one_of("state", set(TaskState), TaskState.TODO),
            "archived_at": told.time("archived_at"),
            "created_by": user(told.text("created_by")),
        },
    )
    created_at = told.time("created_at") or snapshot.time("created_at")
    if made and created_at:
        Task.objects.filter(id=task.id).update(created_at=created_at)
    return task


def _repository(told: Values, snapshot: Values, team: Group, notes: list[str]) -> Repository | None:
    path = told.inner("repository").text("path") or ("" if told else snapshot.text("working_dir"))
    found: Repository | None = Repository.objects.filter(team=team, path=path).first()
    if found is None:
        shown = f"“{path[:200]}” is not opened to team “{team.name}”" if path else "none is named"
        notes.append(f"repository: {shown}; its sessions can be read, and not be started")
    return found


def _profile(snapshot: Values, team: Group, notes: list[str]) -> AgentProfile:
    told, provider = snapshot.inner("agent_profile"), snapshot.inner("provider")
    kind, model = provider.text("type", 64), provider.text("model", 200)
    name = told.text("name", 200) or f"{kind} {model}".strip()[:200] or "Imported agent"
    usable = AgentProfile.objects.filter(Q(team=team) | Q(team=None))
    found = usable.filter(id=told.id("id") or uuid.uuid4()).first() or usable.filter(name=name).first()
    if found is not None:
        return found
    agent_type = told.one_of("agent_type", agent_types(), kind if kind in agent_types() else INERT_TYPE)
    notes.append(f"agent profile “{name}” was made, of type {agent_type}, without command and environment")
    return AgentProfile.objects.create(
        name=name,
        team=team,
        agent_type=agent_type,
        model=told.text("model", 200) or model,
        supports_session_resume=told.flag("supports_session_resume"),
        history_context_injection=told.flag("history_context_injection"),
    )


def _executor(told: Values, notes: list[str]) -> Executor:
    name = told.text("name", 190) or "Imported"
    runtime = told.one_of("runtime", runtimes(), INERT_RUNTIME)
    named = Executor.objects.filter(name=name).first()
    if named is not None and (not told or named.runtime == told.text("runtime")):
        return named
    if named is not None:
        name = f"{name} ({runtime})"
    executor, made = Executor.objects.get_or_create(name=name, defaults={"runtime": runtime, "max_live": 0})
    if made:
        notes.append(f"executor “{name}” was made, with room for no agent")
    return executor
