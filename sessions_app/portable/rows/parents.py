"""Find or create what an imported session refers to: its team, task, agent profile and executor."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Final

from django.contrib.auth.models import Group, User
from django.db.models import Q

from executors_app.mcp_servers import MAX_SERVERS
from executors_app.models import AgentProfile, Executor
from executors_app.plugins import agent_types, runtimes
from sessions_app.agents.services.mcp_servers import Level, inherited_servers
from sessions_app.kernel.rules.states import (
    TaskState,
)
from sessions_app.models import (
    Repository,
    Task,
)
from sessions_app.portable.snapshot_values import SnapshotValues

DEFAULT_TEAM: Final = "Imported"
INERT_RUNTIME: Final = "local_standalone"
INERT_TYPE: Final = "custom_acp"


@dataclass
class SessionParents:
    """The rows that a session refers to, with notes about those that were created."""

    task: Task
    profile: AgentProfile
    executor: Executor
    owner: User | None
    notes: list[str] = field(default_factory=list)


def find_or_create_parents(session_id: uuid.UUID, snapshot: SnapshotValues, team_name: str) -> SessionParents:
    """Find or create the rows that a session refers to. ``team_name`` is the team of records that name none."""
    notes: list[str] = []
    recorded_name = snapshot.inner("task").text("team", 150)
    team, is_new = Group.objects.get_or_create(name=recorded_name or team_name)
    if is_new:
        notes.append(f"team “{team.name}” is new, without members")
    task = _find_or_create_task(session_id, snapshot, team, notes)
    profile = _find_or_create_profile(snapshot, team, notes)
    executor = _find_or_create_executor(snapshot.inner("executor"), notes)
    notes += _notes_on_servers(snapshot.inner("task").inner("mcp_servers"), task)
    return SessionParents(task, profile, executor, find_user(snapshot.text("owner")), notes)


def _notes_on_servers(recorded: SnapshotValues, task: Task) -> list[str]:
    """Return notes on MCP servers that team or repository lack here.

    They are never added: they name programs that agents start, and addresses that are sent secrets.
    """
    known = inherited_servers(task.team_id, task.repository_id)
    notes = []
    for level in (Level.TEAM, Level.REPOSITORY):
        here = {str(server.get("name")) for server in known.get(level, ())}
        names = [values.text("name", 64) for values in recorded.rows(level)]
        missing = [name for name in names if name and name not in here]
        if missing:
            shown = ", ".join(f"“{name}”" for name in missing[:MAX_SERVERS])
            notes.append(f"MCP servers {shown} of the {level} were not added; add them in the team’s settings")
    return notes


def find_user(name: str) -> User | None:
    """Return the user with this name, or None."""
    if name:
        return User.objects.filter(username=name).first()
    return None


def _find_or_create_task(session_id: uuid.UUID, snapshot: SnapshotValues, team: Group, notes: list[str]) -> Task:
    recorded = snapshot.inner("task")
    task_id = recorded.id("id")
    if task_id is not None:
        found = Task.objects.filter(id=task_id, team=team).first()
        if found is not None:
            return found
    if task_id is None or Task.objects.filter(id=task_id).exists():  # never add a session to another team's task
        task_id = uuid.uuid5(session_id, "task")
    task, is_new = Task.objects.get_or_create(
        id=task_id,
        defaults={
            "title": recorded.text("title", 300) or snapshot.text("title", 300) or "Imported session",
            "description": recorded.text("description"),
            "team": team,
            "repository": _find_repository(recorded, snapshot, team, notes),
            "base_branch": recorded.text("base_branch", 255),
            "state": recorded.one_of("state", set(TaskState), TaskState.TODO),
            "entered_state": "",  # since when is not recorded: not since the import
            "archived_at": recorded.time("archived_at"),
            "created_by": find_user(recorded.text("created_by")),
        },
    )
    created_at = recorded.time("created_at") or snapshot.time("created_at")
    if is_new and created_at:
        Task.objects.filter(id=task.id).update(created_at=created_at)
    return task


def _find_repository(
    recorded: SnapshotValues, snapshot: SnapshotValues, team: Group, notes: list[str]
) -> Repository | None:
    path = recorded.inner("repository").text("path")
    if not path and not recorded:
        path = snapshot.text("working_dir")
    found: Repository | None = Repository.objects.filter(team=team, path=path).first()
    if found is not None:
        return found
    if path:
        shown = f"“{path[:200]}” is not opened to team “{team.name}”"
    else:
        shown = "none is recorded"
    notes.append(f"repository: {shown}; its sessions can be read, but not started")
    return None


def _find_or_create_profile(snapshot: SnapshotValues, team: Group, notes: list[str]) -> AgentProfile:
    recorded, provider = snapshot.inner("agent_profile"), snapshot.inner("provider")
    kind, model = provider.text("type", 64), provider.text("model", 200)
    name = recorded.text("name", 200) or f"{kind} {model}".strip()[:200] or "Imported agent"
    usable = AgentProfile.objects.filter(Q(team=team) | Q(team=None))
    found = usable.filter(id=recorded.id("id") or uuid.uuid4()).first() or usable.filter(name=name).first()
    if found is not None:
        return found
    provider_type = kind if kind in agent_types() else INERT_TYPE
    agent_type = recorded.one_of("agent_type", agent_types(), provider_type)
    notes.append(f"agent profile “{name}” of type {agent_type} is new, without command and environment")
    return AgentProfile.objects.create(
        name=name,
        team=team,
        agent_type=agent_type,
        model=recorded.text("model", 200) or model,
        supports_session_resume=recorded.flag("supports_session_resume"),
        history_context_injection=recorded.flag("history_context_injection"),
    )


def _find_or_create_executor(recorded: SnapshotValues, notes: list[str]) -> Executor:
    name = recorded.text("name", 190) or "Imported"
    runtime = recorded.one_of("runtime", runtimes(), INERT_RUNTIME)
    same_name = Executor.objects.filter(name=name).first()
    if same_name is not None and (not recorded or same_name.runtime == recorded.text("runtime")):
        return same_name
    if same_name is not None:
        name = f"{name} ({runtime})"
    executor, is_new = Executor.objects.get_or_create(name=name, defaults={"runtime": runtime, "max_live": 0})
    if is_new:
        notes.append(f"executor “{name}” is new, with a limit of 0 agents")
    return executor
