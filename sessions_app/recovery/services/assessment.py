"""Facts read from a session's rows: integrity, resumability, policy, and whether the worktree is lost."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.db.models import Case, CharField, F, Model, OuterRef, Subquery, Value, When
from django.db.models.functions import Coalesce
from django.utils import timezone

from executors_app.encryption import UndecryptedValue
from executors_app.models import AgentProfile, ExecutorRunning
from executors_app.orm import is_malformed
from executors_app.plugins import UnknownPlugin, agent_type, agent_types, runtime
from executors_app.runtimes import SupportsSharedWorktrees, SupportsWorkspaceState
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import ExecutionFacts, ExecutorStatus, WorkspaceState
from sessions_app.kernel.rules.states import SESSION, TERMINAL_STATES, DesiredState, SessionState, WorkState
from sessions_app.kernel.services.errors import WorktreeMissing
from sessions_app.models import SessionTransaction, TaskSession, TeamPolicy, session_transaction
from sessions_app.recovery.rules.resumability import (
    DAMAGED_ASSESSMENT,
    WORKTREE_MISSING,
    Assessment,
    EffectivePolicy,
    ModeVerdict,
    Policy,
    PolicyChoice,
    ResumeFacts,
    assess,
    assess_mode,
    effective_policy,
)
from sessions_app.recovery.rules.verification import REJECTED_TOKEN_OF, TOKEN_OF, TokenBinding, mismatched_fields

log = logging.getLogger(__name__)
DAMAGED_ROW: Final = "damaged_row"
"""Error code, and sweep rule, of a session whose rows contain impossible values."""
_ALLOWED_VALUES: Final[Mapping[str, frozenset[str]]] = {
    "state": frozenset(SessionState),
    "desired_state": frozenset(DesiredState),
    "work_state": frozenset(WorkState),
    "policy": frozenset({*Policy, ""}),
    "status": frozenset(ExecutorStatus),
}
_COUNTERS: Final = ("last_seq", "journal_seq", "generation", "start_attempts")


def find_flaws(values: Mapping[str, Any], agent_type: str) -> list[str]:
    """Describe each impossible value, one text per column; empty if the rows are sound.

    ``values`` maps column names of the session and its execution to values; columns that are missing are not checked.
    Unreadable is a secret that no key decrypts, or JSON of the wrong shape.
    """
    unreadable = [name for name, value in values.items() if isinstance(value, UndecryptedValue) or is_malformed(value)]
    wrong = [
        name for name, words in _ALLOWED_VALUES.items() if values.get(name) is not None and values[name] not in words
    ]
    wrong += [name for name in _COUNTERS if (values.get(name) or 0) < 0]
    flaws = [f"{name} cannot be read" for name in unreadable]
    flaws += [f"{name} is {repr(values[name])[:80]}" for name in wrong]
    if agent_type not in agent_types():
        flaws.append(f"agent_type is {agent_type!r}")
    return flaws


def flaws_sentence(found: Collection[str]) -> str:
    """Return the flaws as one sentence for people; empty if there are none."""
    if found:
        return f"This session’s record is damaged, so Kandev leaves it alone: {'; '.join(found)}."
    return ""


def session_flaws(session: TaskSession, execution: ExecutorRunning | None) -> list[str]:
    """Describe impossible values in a session's rows; no query, except for a profile that is not loaded."""
    values = _columns(session)
    if execution is not None:
        columns = _columns(execution)
        values = {**columns, "runtime_state": columns.get("state"), **values}
    found = find_flaws(values, session.agent_profile.agent_type)
    if session.agent_execution_id is not None and execution is None:
        found.append(f"agent_execution_id names no execution: {session.agent_execution_id}")
    return found


def _columns(row: Model) -> dict[str, Any]:
    """Return the loaded columns without the attributes that raise for an undecryptable secret."""
    return {name: value for name, value in row.__dict__.items() if not name.startswith("_")}


def execution_of(session: TaskSession) -> ExecutorRunning | None:
    """Return the session's present execution; one query unless it is cached on the session."""
    cached: ExecutorRunning | None = session.__dict__.get("present_execution")
    if cached is None and session.agent_execution_id is not None:
        cached = ExecutorRunning.objects.filter(id=session.agent_execution_id).first()
        session.__dict__["present_execution"] = cached
    return cached


def execution_facts_of(execution: ExecutorRunning, session: TaskSession) -> ExecutionFacts:
    """Build the facts of an execution for runtimes and client."""
    path = store_id = ""
    repository = session.task.repository
    if repository:
        path, store_id = repository.path, repository.store_id
    return execution.facts(path, session.task.base_branch, store_id)


def history_allowed(profile: AgentProfile) -> bool:
    """Return whether a new agent may get the history, by the profile's setting or else the type's."""
    allowed = profile.history_context_injection
    if allowed is None:
        return agent_type(profile.agent_type).history_context_injection
    return allowed


def is_running(session: TaskSession, execution: ExecutorRunning | None) -> bool:
    """Return whether an agent process of this session should be running, by its rows."""
    return bool(session.launch_id) and execution is not None and execution.status == ExecutorStatus.READY


class SessionRows(NamedTuple):
    """The facts in a session's rows that matter for resuming it."""

    state: str
    error_code: str
    launch_id: str
    desired_state: str
    stopped_by_user: bool
    context_mismatch: bool
    task_over: bool
    profile: AgentProfile
    has_agent: bool = True
    metadata: Mapping[str, Any] = MappingProxyType({})
    executor_status: str | None = None
    """None: there is no execution, and the fields below are unknown."""
    executor_error_code: str = ""
    last_seen_at: datetime | None = None
    probed_supports_resume: bool | None = None
    has_token: bool = False
    has_rejected_token: bool = False
    workspace_path: str = ""


def load_session_rows(session: TaskSession) -> SessionRows:
    """Read the rows of one session; one query for the execution unless it is cached on the session."""
    of_session = SessionRows(
        state=session.state,
        error_code=session.error_code,
        launch_id=session.launch_id,
        desired_state=session.desired_state,
        stopped_by_user=session.stopped_by_user,
        context_mismatch=session.context_mismatch,
        task_over=session.task.is_over,
        profile=session.agent_profile,
        has_agent=session.has_agent,
        metadata=session.metadata,
    )
    execution = execution_of(session)
    if execution is None:
        return of_session
    return of_session._replace(
        executor_status=execution.status,
        executor_error_code=execution.error_code,
        last_seen_at=execution.last_seen_at,
        probed_supports_resume=execution.supports_session_resume,
        has_token=bool(execution.resume_token),
        has_rejected_token=bool(execution.rejected_resume_token),
        workspace_path=execution.workspace_path,
    )


def resume_facts(known: SessionRows, *, ever_prompted: bool, workspace: WorkspaceState | None = None) -> ResumeFacts:
    """Build the facts for ``assess``; pass ``workspace`` if it was just checked."""
    if workspace is None:
        workspace = WorkspaceState.PRESENT
        if WORKTREE_MISSING in (known.error_code, known.executor_error_code):
            workspace = WorkspaceState.GONE
    fits, token_strange = _own_token(known)
    return ResumeFacts(
        session_state=SessionState(known.state),
        task_archived=known.task_over,
        running=bool(known.launch_id or not known.has_agent) and known.executor_status == ExecutorStatus.READY,
        last_seen_at=known.last_seen_at,
        known_dead=not known.launch_id,
        has_agent=known.has_agent,
        workspace=workspace,
        context_mismatch=known.context_mismatch,
        ever_prompted=ever_prompted,
        type_supports_resume=agent_type(known.profile.agent_type).supports_session_resume,
        profile_supports_resume=known.profile.supports_session_resume,
        probed_supports_resume=known.probed_supports_resume,
        has_token=fits,
        token_rejected=not fits and (token_strange or known.has_rejected_token),
        history_allowed=history_allowed(known.profile),
        has_row=known.executor_status is not None,
        desired_state=DesiredState(known.desired_state),
        stopped_by_user=known.stopped_by_user,
        token_strange=token_strange,
    )


def _own_token(known: SessionRows) -> tuple[bool, bool]:
    """Return whether the resume token fits profile, type and directory, and whether it belongs to others."""
    if not agent_type(known.profile.agent_type).supports_session_resume:
        return known.has_token, False
    now = TokenBinding(str(known.profile.pk), known.profile.agent_type, known.workspace_path)
    if known.has_token:
        fits = not mismatched_fields(known.metadata.get(TOKEN_OF), now)
        return fits, not fits
    return False, known.has_rejected_token and bool(mismatched_fields(known.metadata.get(REJECTED_TOKEN_OF), now))


def assess_session(session: TaskSession) -> Assessment:
    """Assess whether and how this session can be resumed, and why not."""
    if session_flaws(session, execution_of(session)):
        return DAMAGED_ASSESSMENT
    facts = resume_facts(load_session_rows(session), ever_prompted=session.runs.exists())
    return assess(facts, timezone.now())


def assess_for_start(transaction: SessionTransaction) -> Assessment:
    """Assess the session for a start; an agent that is about to be stopped counts as gone."""
    assessment = assess_session(transaction.session)
    if transaction.session.desired_state == DesiredState.RUNNING:
        return assessment
    return assessment.without_live_agent


def assess_start(session: TaskSession, mode: str) -> ModeVerdict:
    """Return the verdict on a start in ``mode``, as if no agent were running."""
    return assess_mode(assess_session(session).without_live_agent, mode)


def refuse_lost_worktree(session_id: uuid.UUID) -> None:
    """Raise WorktreeMissing if this machine's disk shows that the worktree is lost and cannot be rebuilt.

    The session then shows the error, as after a sweep. If it already does, and the disk may have been mounted since,
    the error ends. Running sessions, and those on other machines, are left alone: their start will show it, and
    replaces no lost worktree.
    """
    session = TaskSession.objects.select_related("task__repository", "agent_profile", "executor").get(id=session_id)
    ended = session.state in TERMINAL_STATES or session.task.is_over
    if ended or is_running(session, execution_of(session)):
        return
    state, lost = _check_worktree(session)
    if state is WorkspaceState.GONE:
        _record_loss(session_id, lost)
        # After the commit: raised inside the block, it would roll back the error that was just recorded.
        raise WorktreeMissing(f"{lost} Create a new session.")
    if is_worktree_lost(session):
        _end_loss(session_id)


def is_worktree_lost(session: TaskSession) -> bool:
    """Whether the worktree was lost when it was last checked."""
    if session.error_code == WORKTREE_MISSING:
        return True
    execution = execution_of(session)
    return execution is not None and execution.error_code == WORKTREE_MISSING


def _record_loss(session_id: uuid.UUID, lost: str) -> None:
    with session_transaction(session_id) as transaction:
        transaction.move_executor("fail", error_code=WORKTREE_MISSING, error_message=lost)
        if SESSION.allows(transaction.session.state, "fail"):
            transaction.move_session("fail", error_code=WORKTREE_MISSING, error_message=lost)
            transaction.set_fields(next_restart_at=None)


def _end_loss(session_id: uuid.UUID) -> None:
    with session_transaction(session_id) as transaction:
        if not is_worktree_lost(transaction.session):
            return
        transaction.move_executor("stop")
        if SESSION.allows(transaction.session.state, "stop"):
            transaction.move_session("stop", reason="worktree_found")


def worktree_loss_reason(session: TaskSession) -> str:
    """Return why the session's worktree is lost; empty if it is not, or if that cannot be checked from here."""
    state, reason = _check_worktree(session)
    if state is WorkspaceState.GONE:
        return reason
    return ""


def _check_worktree(session: TaskSession) -> tuple[WorkspaceState | None, str]:
    """Return the state of the session's worktree and why it is lost; None if that cannot be checked from here."""
    execution = execution_of(session)
    if execution is None or not execution.worktree_path or session_flaws(session, execution):
        return None, ""
    facts = execution_facts_of(execution, session)
    try:
        place = runtime(execution.runtime)
        if not isinstance(place, SupportsWorkspaceState) or not place.can_manage(facts):
            return None, ""
        return place.workspace_state(facts)
    except (UnknownPlugin, ExecutorError, OSError) as error:
        log.info("session %s: its worktree cannot be checked: %s", session.id, error)
        return None, ""


def can_be_taken_over(session: TaskSession) -> bool:
    """Return whether a new session could take over the worktree, without checking the disk."""
    try:
        shares = isinstance(runtime(session.executor.runtime), SupportsSharedWorktrees)
    except UnknownPlugin:
        return False
    return shares and bool(session.worktree_path)


NO_CHOICE: Final = PolicyChoice()


def effective_policy_expression() -> Case:
    """Return an expression for queries of sessions: the policy in effect for each."""
    team = TeamPolicy.objects.filter(team=OuterRef("task__team")).exclude(policy="").values("policy")
    others = Coalesce(Subquery(team), Value(settings.KANDEV_RECOVERY_POLICY))
    return Case(When(policy="", then=others), default=F("policy"), output_field=CharField())


def effective_policy_of(session: TaskSession) -> EffectivePolicy:
    """Return the policy in effect for one session; one query, or none if the session sets both values."""
    own = PolicyChoice(session.policy, session.continue_prompts)
    if own.policy and own.continues is not None:
        return effective_policy(own, NO_CHOICE, deployment_policy())
    return effective_policy(own, team_choice(session.task.team_id), deployment_policy())


def deployment_policy() -> PolicyChoice:
    """Return the deployment's settings."""
    continues = {"on": True, "off": False}.get(settings.KANDEV_CONTINUE)
    return PolicyChoice(settings.KANDEV_RECOVERY_POLICY, continues)


def team_choice(team_id: int) -> PolicyChoice:
    """Return what one team has set."""
    return team_choices([team_id]).get(team_id, NO_CHOICE)


def team_choices(team_ids: Collection[int]) -> Mapping[int, PolicyChoice]:
    """Return what teams have set, by id; teams without settings may be missing. One query."""
    columns = ("team_id", "policy", "continue_prompts")
    rows = TeamPolicy.objects.filter(team_id__in=set(team_ids))
    return {team: PolicyChoice(policy, continues) for team, policy, continues in rows.values_list(*columns)}
