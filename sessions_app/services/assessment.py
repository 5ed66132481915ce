"""The facts of a session's rows, for the one opinion about resuming (design 8). Reads, never writes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from django.utils import timezone

from executors_app.domain import ExecutorStatus, WorkspaceState
from executors_app.models import AgentProfile, ExecutorRunning
from executors_app.plugins import agent_type
from executors_app.prepared import Prepared
from sessions_app.domain.belonging import REJECTED_TOKEN_OF, TOKEN_OF, Belonging, strange
from sessions_app.domain.resumability import DAMAGED, Assessment, ModeVerdict, ResumeFacts, assess, assess_mode
from sessions_app.domain.states import DesiredState, SessionState
from sessions_app.models import Run, TaskSession
from sessions_app.services.soundness import flaws_of

WORKTREE_MISSING = "worktree_missing"

_EXECUTION = Prepared(lambda key: ExecutorRunning.objects.filter(id=key))
_ANY_RUN = Prepared(lambda key: Run.objects.filter(session_id=key).order_by().values_list("id")[:1])


def execution_of(session: TaskSession) -> ExecutorRunning | None:
    """The session's present execution; one query unless the session carries it already."""
    cached: ExecutorRunning | None = session.__dict__.get("present_execution")
    if cached is None and session.agent_execution_id is not None:
        cached = _EXECUTION.first(session.agent_execution_id)
        session.__dict__["present_execution"] = cached
    return cached


def history_allowed(profile: AgentProfile) -> bool:
    """Whether the conversation may be told to a new agent: the profile's word, else the type's."""
    allowed = profile.history_context_injection
    return agent_type(profile.agent_type).history_context_injection if allowed is None else allowed


def is_running(session: TaskSession, execution: ExecutorRunning | None) -> bool:
    """Whether an agent process of this session is believed to be up."""
    return bool(session.launch_id) and execution is not None and execution.status == ExecutorStatus.READY


class Known(NamedTuple):
    """What the rows say of a session, as far as resuming it goes."""

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
    """None: there is no execution, and what follows is not known either."""
    executor_error_code: str = ""
    last_seen_at: datetime | None = None
    probed_supports_resume: bool | None = None
    has_token: bool = False
    has_rejected_token: bool = False
    workspace_path: str = ""


def known_of(session: TaskSession) -> Known:
    """The rows of one session; a query for the execution unless the session carries it already."""
    of_session = Known(
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


def resume_facts(known: Known, *, ever_prompted: bool, workspace: WorkspaceState | None = None) -> ResumeFacts:
    """The facts for ``assess``; ``workspace`` where somebody has just looked."""
    gone = WORKTREE_MISSING in (known.error_code, known.executor_error_code)
    fits, token_strange = _own_token(known)
    return ResumeFacts(
        session_state=SessionState(known.state),
        task_archived=known.task_over,
        give_up=known.state == SessionState.FAILED,
        running=bool(known.launch_id or not known.has_agent) and known.executor_status == ExecutorStatus.READY,
        last_seen_at=known.last_seen_at,
        known_dead=not known.launch_id,
        has_agent=known.has_agent,
        workspace=workspace or (WorkspaceState.GONE if gone else WorkspaceState.PRESENT),
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


def _own_token(known: Known) -> tuple[bool, bool]:
    """Whether the token is of this profile, type and directory; and whether all that there is belongs elsewhere."""
    if not agent_type(known.profile.agent_type).supports_session_resume:
        return known.has_token, False
    now = Belonging(str(known.profile.pk), known.profile.agent_type, known.workspace_path)
    if known.has_token:
        fits = not strange(known.metadata.get(TOKEN_OF), now)
        return fits, not fits
    return False, known.has_rejected_token and bool(strange(known.metadata.get(REJECTED_TOKEN_OF), now))


def assess_session(session: TaskSession, now: datetime | None = None) -> Assessment:
    """Whether, why and how this session can be resumed."""
    if flaws_of(session, execution_of(session)):
        return DAMAGED
    facts = resume_facts(known_of(session), ever_prompted=bool(_ANY_RUN.values(session.id)))
    return assess(facts, now or timezone.now())


def assess_start(session: TaskSession, mode: str) -> ModeVerdict:
    """What a start in ``mode`` comes to, whatever the agent seemed to be a moment ago."""
    return assess_mode(assess_session(session).if_dead, mode)
