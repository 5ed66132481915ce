"""What a user can see and choose: tasks, sessions, repositories, agent profiles and executors."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import Case, CharField, Exists, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce

from executors_app.models import PROFILE_SECRETS, AgentProfile, Executor, ExecutorRunning
from executors_app.plugins import runtime
from executors_app.repositories.scratch import BRANCH, create_scratch_repository
from executors_app.repositories.team import TeamRepository
from executors_app.wire.errors import ExecutorError, RepositoryUnusable, RuntimeUnavailable
from executors_app.wire.executions import ExecutorStatus, Observed
from sessions_app.accounts.rate_limits import AttemptLimit
from sessions_app.accounts.team_scope import teams_of
from sessions_app.kernel.rules.states import WorkState
from sessions_app.kernel.services.errors import ExecutorInUse, Invalid
from sessions_app.models import Repository, Task, TaskSession
from sessions_app.recovery.services.assessment import execution_facts_of
from sessions_app.recovery.services.policies import effective_policy_expression
from sessions_app.workflows.models import Workflow, WorkflowRun

LIVE_STATUSES: Final = (ExecutorStatus.STARTING, ExecutorStatus.READY, ExecutorStatus.ERROR)
"""Statuses of executions that run or should run."""
SECRET_FIELDS: Final = tuple(f"agent_profile__{name}" for name in PROFILE_SECRETS)
_probes: Final = AttemptLimit("executor-probe", 20, 60)
"""Probes of one user: 20 a minute, because each contacts the executor and everything that runs there."""


def visible_tasks(user: User) -> QuerySet[Task]:
    """Return the tasks of the user's teams, with the work state of the busiest session as ``agent_work_state``."""
    sessions = TaskSession.objects.filter(task=OuterRef("pk"))
    working, done = (
        When(Exists(sessions.filter(work_state=state)), then=Value(state.value))
        for state in (WorkState.WORKING, WorkState.DONE)
    )
    state = Case(working, done, default=Value(WorkState.IDLE.value), output_field=CharField())
    found: QuerySet[Task] = Task.objects.visible_to(user).select_related("team", "repository")
    return found.annotate(agent_work_state=state)


def visible_sessions(user: User) -> QuerySet[TaskSession]:
    """Return the sessions of the user's teams with task, profile and executor.

    Adds ``executor_status`` and ``held_policy``, the policy in effect.
    """
    status = ExecutorRunning.objects.filter(id=OuterRef("agent_execution_id")).values("status")
    found: QuerySet[TaskSession] = TaskSession.objects.visible_to(user).select_related(
        "task__repository", "agent_profile", "executor"
    )
    return found.defer(*SECRET_FIELDS).annotate(
        executor_status=Coalesce(Subquery(status), Value(ExecutorStatus.STOPPED.value)),
        held_policy=effective_policy_expression(),
    )


def visible_profiles(user: User) -> QuerySet[AgentProfile]:
    """Return the profiles shared with everyone, and those of the user's teams."""
    return AgentProfile.objects.filter(Q(team=None) | Q(team__in=teams_of(user)))


def profiles_for(task: Task) -> QuerySet[AgentProfile]:
    """Return the profiles that a task's sessions may use. Profiles contain secrets, so other teams' are left out."""
    return profiles_of(task.team_id)


def profiles_of(team_id: int) -> QuerySet[AgentProfile]:
    """Return the profiles shared with everyone, and those of one team."""
    return AgentProfile.objects.filter(Q(team=None) | Q(team=team_id))


def visible_executions(user: User) -> QuerySet[ExecutorRunning]:
    """Return the executions of the sessions of the user's teams."""
    return ExecutorRunning.objects.filter(session__in=TaskSession.objects.visible_to(user))


def add_repository(values: Mapping[str, Any]) -> Repository:
    """Open a git repository to a team. The caller has checked that the user is staff, who alone may do this.

    ``values``: name, team, path, and optionally default_branch (default: the branch that is checked out). Raises
    Invalid if it is no repository, is outside the allowed folders, or is already open to the team.
    """
    found = inspect_repository(values["path"])
    if Repository.objects.filter(team=values["team"], path=found.path).exists():
        raise Invalid("This repository is already open to the team.", field="path")
    return Repository.objects.create(
        name=values["name"],
        team=values["team"],
        path=found.path,
        default_branch=values.get("default_branch") or found.branch,
    )


@dataclass(frozen=True, slots=True)
class InspectedRepository:
    """A git repository that may be opened to a team."""

    path: str
    """Its resolved path."""
    branch: str
    """The branch that is checked out; empty if none is."""


def inspect_repository(given: str) -> InspectedRepository:
    """Look at the repository with this path, before any transaction; raises Invalid if it cannot be used."""
    path = usable_repository(given)
    try:
        return InspectedRepository(str(path), current_branch(path))
    except (RepositoryUnusable, OSError) as error:
        raise Invalid("The repository cannot be read.", field="path") from error


def usable_repository(given: str) -> Path:
    """Return the resolved path of a git repository below the allowed folders; raises Invalid for anything else."""
    if not Path(given).is_absolute():
        raise Invalid("Enter an absolute path.", field="path")
    try:
        path = Path(given).resolve()
        roots = [Path(root).resolve() for root in settings.KANDEV_REPOSITORY_ROOTS]
        if roots and not any(path.is_relative_to(root) for root in roots):
            raise Invalid("The path is not in any of the folders that KANDEV_REPOSITORY_ROOTS allows.", field="path")
        TeamRepository.open(path)
    except RepositoryUnusable as error:
        raise Invalid(error.message, field="path") from error
    except (OSError, RuntimeError, ValueError) as error:
        raise Invalid("This is not a valid path.", field="path") from error
    return path


def current_branch(path: Path) -> str:
    """Return the branch that is checked out in a repository; empty if none is."""
    head = TeamRepository.open(path).head()
    if head.startswith("refs/heads/"):
        return head.removeprefix("refs/heads/")
    return ""


def delete_executor(executor: Executor) -> None:
    """Delete an executor that nothing uses. The caller has checked that the user is staff.

    Raises ExecutorInUse, whose details count the sessions (also ended ones, which can be viewed and resumed),
    executions, workflows and workflow runs that use it.
    """
    with transaction.atomic():
        # Nothing cascades: if a session is created after these counts, the database refuses the deletion.
        uses = {
            "sessions": TaskSession.objects.filter(executor=executor).count(),
            "executions": ExecutorRunning.objects.filter(executor=executor).count(),
            "workflows": Workflow.objects.filter(executor=executor).count(),
            "workflow_runs": WorkflowRun.objects.filter(executor=executor).count(),
        }
        if any(uses.values()):
            told = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in uses.items() if number)
            raise ExecutorInUse(f"{executor.name} is used by {told}. Delete those first.", **uses)
        executor.delete()


def probe_executor(executor: Executor, user: User) -> dict[str, Any]:
    """Check an executor now: its configuration, and how many of its executions are alive, dead or unknown.

    The caller has checked that ``user`` is staff, because errors contain what only operators may read, such as
    addresses. Raises RuntimeUnavailable, UnknownPlugin, Throttled.
    """
    _probes.require(str(user.pk))
    place = runtime(executor.runtime)
    try:
        place.check_config(executor.config)
    except ValueError as error:
        raise RuntimeUnavailable(f"The settings of this executor are not valid: {error}") from error
    try:
        async_to_sync(place.check_availability)(executor.config)
    except ExecutorError as error:
        raise RuntimeUnavailable(error.message_for_staff) from error
    rows = ExecutorRunning.objects.filter(executor=executor, status__in=LIVE_STATUSES)
    facts = [execution_facts_of(row, row.session) for row in rows.select_related("session__task__repository")]
    begun = time.monotonic()
    seen = async_to_sync(place.observe)(
        facts, timeout=settings.KANDEV_SWEEP_TIMEOUT, concurrency=settings.KANDEV_SWEEP_CONCURRENCY
    )
    counts = Counter(observation.observed for observation in seen.values())
    return {
        "ok": True,
        "runtime": place.name,
        "isolated": place.isolated,
        "observed": {observed.value: counts[observed] for observed in Observed},
        "duration_ms": round((time.monotonic() - begun) * 1000),
    }


SCRATCH_DIRECTORY: Final = "agent-tests"
"""Directory of the data directory with one scratch repository for each team."""
_README: Final = """# Scratch repository

Kandev tests agents in branches of this repository. It contains nothing of value.
"""


def make_repository(directory: Path, readme: str) -> str:
    """Create a git repository whose first commit is a README, unless it is there; return its branch."""
    create_scratch_repository(directory, readme)
    return current_branch(directory) or BRANCH


def scratch_root() -> Path:
    """Return the directory of all scratch repositories."""
    return Path(settings.KANDEV_DATA_DIR) / SCRATCH_DIRECTORY


def without_scratch(repositories: QuerySet[Repository], *, keep: uuid.UUID | None = None) -> QuerySet[Repository]:
    """Return the repositories offered for work: without those in which agents are tested, but with ``keep``."""
    return repositories.filter(~Q(path__startswith=f"{scratch_root()}/") | Q(pk=keep))


def scratch_repository(team: Group) -> Repository:
    """Return the team's scratch repository, created on its first use. Raises ExecutorError, OSError."""
    row = _scratch_row(team)
    make_repository(Path(row.path), _README)
    return row


def _scratch_row(team: Group) -> Repository:
    """Return the row of the team's scratch repository, whose directory may not exist yet."""
    with transaction.atomic():
        Group.objects.select_for_update().get(pk=team.pk)  # two first uses make one row
        row = Repository.objects.filter(team=team, path__startswith=f"{scratch_root()}/").first()
        if row is None:
            # Not the team's number, which another team can get after a restored backup.
            path = scratch_root() / str(uuid.uuid4())
            row = Repository.objects.create(name="Agent tests", team=team, path=str(path), default_branch=BRANCH)
    return row
