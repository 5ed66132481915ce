"""The settings of a team's repositories: what its admins may change, what depends on one, and how it is removed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import OuterRef, QuerySet, Subquery
from django.utils import timezone

from sessions_app.accounts.audit import record_change
from sessions_app.accounts.authorization import may_manage
from sessions_app.agents.services.mcp_servers import visible_repositories
from sessions_app.catalogue.services.repositories import without_scratch
from sessions_app.catalogue.services.repository_checks import require_base, require_branch
from sessions_app.kernel.rules.states import ENDED_STATES, DesiredState, TaskState
from sessions_app.kernel.services.errors import NotFound, ReadOnly, RepositoryChanged, RepositoryInUse
from sessions_app.models import Repository, Task, TaskSession
from sessions_app.workflows.models import Workflow

EDITABLE: Final[Mapping[str, str]] = {
    "name": "name",
    "default_branch": "default branch",
    "default_base": "base of new tasks",
    "executor_labels": "labels of executors",
    "is_default": "default repository",
}
"""What the admins of a team may change, and what it is called."""
MAX_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class RepositoryUses:
    """What depends on a repository."""

    tasks: int
    open_tasks: int
    running_sessions: int
    workflows: tuple[str, ...]
    """Names of the workflows that use it, unless they are archived."""
    schedules: int
    """How many of them start by themselves."""


def settings_repositories(user: User) -> QuerySet[Repository]:
    """Return the repositories whose settings ``user`` may see (for staff: all), with ``last_used``."""
    sessions = TaskSession.objects.filter(task__repository=OuterRef("pk")).order_by("-created_at")
    rows = without_scratch(visible_repositories(user)).select_related("team", "remote")
    return rows.annotate(last_used=Subquery(sessions.values("created_at")[:1])).order_by("team__name", "name", "id")


def find_uses(row: Repository) -> RepositoryUses:
    """Return what depends on a repository."""
    tasks = Task.objects.filter(repository=row)
    running = TaskSession.objects.filter(task__repository=row, desired_state=DesiredState.RUNNING)
    workflows = Workflow.objects.filter(repository=row, archived_at=None).order_by("name")
    named = list(workflows.values_list("name", "triggers_enabled"))
    return RepositoryUses(
        tasks=tasks.count(),
        open_tasks=tasks.filter(archived_at=None).exclude(state__in=(TaskState.DONE, TaskState.CANCELLED)).count(),
        running_sessions=running.exclude(state__in=ENDED_STATES).count(),
        workflows=tuple(name for name, _ in named),
        schedules=sum(enabled for _, enabled in named),
    )


def repository_version(row: Repository) -> str:
    """Return what identifies the present settings, for an editor that has seen them."""
    values = "\0".join(str(getattr(row, name)) for name in EDITABLE)
    return hashlib.sha256(values.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def change_repository(row: Repository, values: Mapping[str, Any], by: User, version: str | None = None) -> Repository:
    """Change what ``EDITABLE`` names; missing values stay. Not for transactions: branches are looked up first.

    ``version`` is the ``repository_version`` that the editor has seen; None: whatever the settings are now. Raises
    ReadOnly, Invalid for a branch that the repository does not have, RepositoryChanged, and NotFound if it is removed.
    """
    _require_manager(by, row.team)
    _check_branches(row, values)
    with transaction.atomic():
        found = _locked(row)
        changed = {name: values[name] for name in EDITABLE if name in values and values[name] != getattr(found, name)}
        _require_version(found, version if changed else None)
        if changed.get("is_default"):
            Repository.objects.filter(team=found.team_id, is_default=True).update(is_default=False)
        for name, value in changed.items():
            setattr(found, name, value)
        found.save(update_fields=list(changed))
        for name, value in changed.items():
            record_change(by, found, f"{EDITABLE[name].capitalize()}: {_describe(value)}")
    return found


def remove_repository(row: Repository, by: User, version: str | None = None) -> None:
    """Offer a repository to no new task of its team. Its tasks stay, with their sessions, its remote and its servers.

    Staff put it back by adding its path again. Raises ReadOnly, RepositoryChanged, NotFound if it is removed already,
    and RepositoryInUse while workflows use it, which would fail without anybody looking.
    """
    _require_manager(by, row.team)
    with transaction.atomic():
        found = _locked(row)
        _require_version(found, version)
        if workflows := find_uses(found).workflows:
            raise RepositoryInUse(
                f"{found.name} is used by {_name_some(workflows)}. Choose another repository there first.",
                workflows=len(workflows),
            )
        Repository.objects.filter(id=found.id).update(removed_at=timezone.now(), is_default=False)
        record_change(by, found, "Removed from the team")
        record_change(by, found.team, f"Repository removed: {found.name}")


def _require_manager(by: User, team: Group) -> None:
    if getattr(by, "only_reads", False) or not may_manage(by, team):
        raise ReadOnly("Only staff and the team’s admins can change this.")


def _check_branches(row: Repository, values: Mapping[str, Any]) -> None:
    """Look up the branches that are new; an old one may be missing, so that a name can still be corrected."""
    for name, require in (("default_branch", require_branch), ("default_base", require_base)):
        if values.get(name) and values[name] != getattr(row, name):
            require(row, values[name])


def _locked(row: Repository) -> Repository:
    Group.objects.select_for_update().get(pk=row.team_id)  # a team has one default
    found: Repository | None = (
        without_scratch(Repository.objects.select_related("team"))
        .select_for_update(of=("self",))
        .filter(id=row.id)
        .first()
    )
    if found is None:
        raise NotFound("The repository was removed from the team.")
    return found


def _require_version(row: Repository, version: str | None) -> None:
    present = repository_version(row)
    if version is not None and version != present:
        raise RepositoryChanged(version=present, **{name: getattr(row, name) for name in EDITABLE})


def _describe(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or "none"


def _name_some(names: tuple[str, ...]) -> str:
    shown = ", ".join(f"“{name}”" for name in names[:MAX_NAMED])
    if len(names) > MAX_NAMED:
        return f"the workflows {shown} and {len(names) - MAX_NAMED} more"
    return f"the workflow{'s' if len(names) > 1 else ''} {shown}"
