"""What a sweep reads: the sessions that claim to run or should run, in a constant number of queries."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db.models import Exists, OuterRef

from executors_app.models import AgentProfile
from executors_app.orm import NUMBER_PLACEHOLDER, KeyedQuery
from executors_app.wire.executions import ExecutionFacts, ExecutorStatus, Observation
from sessions_app.accounts.models import TeamRole
from sessions_app.kernel.rules.states import (
    OPEN_RUN_STATES,
    DesiredState,
    PromptState,
    SessionState,
    TaskState,
    WorkState,
)
from sessions_app.models import Intent, IntentKind, Prompt, Repository, Turn
from sessions_app.recovery.rules.recovery_facts import Policy, PolicyChoice, SweepFacts, effective_policy
from sessions_app.recovery.rules.resumability import assess
from sessions_app.recovery.services import policies
from sessions_app.recovery.services.assessment import SessionRows, resume_facts
from sessions_app.recovery.sweep.selection import (
    CorruptRow,
    StoredExecution,
    find_corruption,
    find_dangling_sessions,
    load_stored_executions,
    unreadable_row,
)
from sessions_app.supervisor import leases


@dataclass(frozen=True, slots=True)
class Candidate:
    """One session with its execution, and all other rows that its decision depends on."""

    stored: StoredExecution
    place: ExecutionFacts
    profile: AgentProfile
    foreign: bool
    start_created_at: datetime | None
    """When the open start intent was created; None if there is none."""
    queued: bool
    """Whether it has queued prompts."""
    open_run: bool
    ever_prompted: bool
    owner_in_team: bool
    policy: str = "auto"
    """The effective recovery policy: the session's own, else its team's, else the deployment's."""


_PROFILES: Final = KeyedQuery(lambda ids: AgentProfile.objects.filter(id__in=ids))
_STARTS: Final = KeyedQuery(
    lambda ids: Intent.objects.filter(session_id__in=ids, done_at=None, kind=IntentKind.START).values_list(
        "session_id", "created_at"
    )
)
_QUEUED: Final = KeyedQuery(
    lambda ids: Prompt.objects.filter(session_id__in=ids, state=PromptState.QUEUED).order_by().values_list("session_id")
)
_RUNS: Final = KeyedQuery(
    lambda ids: (
        Turn.objects.filter(session_id__in=ids).order_by().values_list("session_id", "state", "has_process").distinct()
    )
)
_REPOSITORIES: Final = KeyedQuery(
    lambda ids: Repository.objects.filter(id__in=ids).values_list("id", "path", "store_id")
)


def load_candidates(
    me: str, sessions: Collection[uuid.UUID] = (), runtime: str = ""
) -> tuple[list[Candidate], list[CorruptRow]]:
    """Load everything that decisions need, in a constant number of queries, and the corrupt rows that are skipped.

    ``me`` is the boot id of this supervisor. Empty ``sessions`` or ``runtime`` mean all.
    """
    found, unreadable = load_stored_executions(sessions, runtime)
    damaged = find_dangling_sessions(sessions, runtime) + [unreadable_row(*one) for one in unreadable.items()]
    profiles = {profile.pk: profile for profile in _PROFILES.all({one.session__agent_profile_id for one in found})}
    sound = []
    for one in found:
        harm = find_corruption(one, profiles[one.session__agent_profile_id].agent_type)
        if harm is None:
            sound.append(one)
        else:
            damaged.append(harm)
    return _rows(me, sound, profiles), damaged


def _rows(me: str, stored: list[StoredExecution], profiles: Mapping[uuid.UUID, AgentProfile]) -> list[Candidate]:
    """Build the candidates; each of the queries here is for all sessions at once."""
    ids = [one.session_id for one in stored]
    in_flight: dict[uuid.UUID, datetime] = dict(_STARTS.values(ids))  # type: ignore[arg-type]
    queued = {session_id for (session_id,) in _QUEUED.values(ids)}
    runs = list(_RUNS.values(ids))
    prompted = {session_id for session_id, _, _ in runs}
    turning = {session_id for session_id, state, has_process in runs if has_process and state in OPEN_RUN_STATES}
    repositories = _repositories(stored)
    teams = _owner_teams(stored)
    said = policies.team_choices([one.session__task__team_id for one in stored])
    deployment = policies.deployment_policy()
    foreign = leases.leased_by_others([(one.id, one.owner, one.lease_expires_at) for one in stored], me)
    return [
        Candidate(
            stored=one,
            place=_execution_facts(one, repositories.get(one.session__task__repository_id, ("", ""))),
            profile=profiles[one.session__agent_profile_id],
            foreign=one.id in foreign,
            start_created_at=in_flight.get(one.session_id),
            queued=one.session_id in queued,
            open_run=one.session_id in turning,
            ever_prompted=one.session_id in prompted,
            owner_in_team=one.session__owner_id is None or (one.session__owner_id, one.session__task__team_id) in teams,
            policy=effective_policy(
                PolicyChoice(one.session__policy), said.get(one.session__task__team_id, policies.NO_CHOICE), deployment
            ).policy,
        )
        for one in stored
    ]


def _repositories(stored: Collection[StoredExecution]) -> Mapping[uuid.UUID | None, tuple[str, str]]:
    """Return the path and the object store's name of each repository."""
    wanted = {one.session__task__repository_id for one in stored if one.session__task__repository_id}
    return {key: (path, store_id) for key, path, store_id in _REPOSITORIES.values(wanted)}


def _execution_facts(one: StoredExecution, repository: tuple[str, str]) -> ExecutionFacts:
    """Build the facts for runtimes and client; a token that cannot be decrypted counts as empty.

    ``repository``: its path and the name of its object store.
    """
    path, store_id = repository
    return ExecutionFacts(
        id=str(one.id),
        session_id=str(one.session_id),
        task_id=str(one.task_id),
        runtime=one.runtime,
        host_id=one.host_id,
        agentctl_url=one.agentctl_url,
        auth_token=one.auth_token if isinstance(one.auth_token, str) else "",
        status=one.status,
        generation=one.generation,
        pid=one.pid,
        container_id=one.container_id,
        repository_path=path,
        store_id=store_id,
        base_branch=one.session__task__base_branch,
        workspace_path=one.workspace_path,
        worktree_path=one.worktree_path,
        worktree_branch=one.worktree_branch,
        worktree_id=one.worktree_id,
        state=one.state,
        config=one.executor__config or {},
    )


def _owner_teams(stored: Collection[StoredExecution]) -> set[tuple[int, int]]:
    """Return (owner, team) for every session owner who is active and more than a viewer in that team."""
    owners = {one.session__owner_id for one in stored if one.session__owner_id}
    return {(user, team) for user, team in _MEMBERS.values(owners)}


def _members(owners: Collection[int]) -> Any:
    members = get_user_model().groups.through.objects.filter(user_id__in=owners, user__is_active=True)
    viewers = TeamRole.objects.filter(user=OuterRef("user_id"), team=OuterRef("group_id"), role=TeamRole.Role.VIEWER)
    return members.exclude(Exists(viewers)).values_list("user_id", "group_id")


_MEMBERS: Final = KeyedQuery(_members, NUMBER_PLACEHOLDER)


def _resume_rows(row: Candidate, *, task_over: bool) -> SessionRows:
    one = row.stored
    return SessionRows(
        state=one.session__state,
        error_code=one.session__error_code,
        launch_id=one.session__launch_id,
        desired_state=one.session__desired_state,
        stopped_by_user=one.session__stopped_by_user,
        context_mismatch=one.session__context_mismatch,
        task_over=task_over,
        profile=row.profile,
        has_agent=one.session__has_agent,
        metadata=one.session__metadata,
        executor_status=one.status,
        executor_error_code=one.error_code,
        last_seen_at=one.last_seen_at,
        probed_supports_resume=one.supports_session_resume,
        has_token=one.has_token,
        has_rejected_token=one.has_rejected_token,
        workspace_path=one.workspace_path,
    )


def sweep_facts(
    row: Candidate,
    seen: Observation,
    *,
    boot: bool,
    unknown_before: bool,
    attached: bool,
    now: datetime,
    admitted: bool = False,
) -> SweepFacts:
    """Build the facts from which ``decide`` derives the decision, without further queries."""
    one, place = row.stored, row.place
    archived = one.session__task__archived_at is not None
    closed = one.session__task__state in (TaskState.DONE, TaskState.CANCELLED)
    known = _resume_rows(row, task_over=archived or closed)
    starting = one.status == ExecutorStatus.STARTING
    return SweepFacts(
        session_id=place.session_id,
        task_id=place.task_id,
        runtime=one.runtime,
        session_state=SessionState(one.session__state),
        executor_status=ExecutorStatus(one.status),
        executor_error_code=one.error_code,
        desired_state=DesiredState(one.session__desired_state),
        work_state=WorkState(one.session__work_state),
        task_archived=archived,
        task_closed=closed,
        policy=Policy(row.policy),
        assessment=assess(resume_facts(known, ever_prompted=row.ever_prompted, workspace=seen.workspace), now),
        workspace=seen.workspace,
        workspace_reason=seen.workspace_reason,
        has_open_run=row.open_run,
        has_queued_prompts=row.queued,
        known_launch_id=one.session__launch_id or None,
        started_at=row.start_created_at or (one.updated_at if starting else None),
        start_in_flight=row.start_created_at is not None,
        foreign_lease=row.foreign,
        boot=boot,
        unknown_before=unknown_before,
        asleep=one.status == ExecutorStatus.STOPPED and one.status_reason == "idle",
        attached=attached,
        attempts=one.session__start_attempts,
        next_restart_at=one.session__next_restart_at,
        owner_in_team=row.owner_in_team,
        max_attempts=settings.KANDEV_MAX_RESTARTS,
        start_timeout=timedelta(seconds=settings.KANDEV_START_TIMEOUT),
        workspace_only=bool(one.session__metadata.get("workspace_only")),
        has_agent=one.session__has_agent,
        start_rank=one.session__start_rank,
        admitted=admitted,
    )
