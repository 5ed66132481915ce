"""The facts of a session's rows, for the one opinion about resuming (design 8). Reads, never writes."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone

from executors_app.domain import ExecutorStatus, WorkspaceState
from executors_app.models import ExecutorRunning
from executors_app.plugins import agent_type
from sessions_app.domain.resumability import Assessment, ModeVerdict, ResumeFacts, assess, assess_mode
from sessions_app.domain.states import DesiredState, SessionState
from sessions_app.models import TaskSession

WORKTREE_MISSING = "worktree_missing"


def execution_of(session: TaskSession) -> ExecutorRunning | None:
    """The session's present execution; one query unless the session carries it already."""
    cached: ExecutorRunning | None = session.__dict__.get("present_execution")
    if cached is None and session.agent_execution_id is not None:
        cached = ExecutorRunning.objects.filter(id=session.agent_execution_id).first()
        session.__dict__["present_execution"] = cached
    return cached


def history_allowed(session: TaskSession) -> bool:
    """Whether the conversation may be told to a new agent: the profile's word, else the type's."""
    allowed = session.agent_profile.history_context_injection
    return agent_type(session.agent_profile.agent_type).history_context_injection if allowed is None else allowed


def is_running(session: TaskSession, execution: ExecutorRunning | None) -> bool:
    """Whether an agent process of this session is believed to be up."""
    return bool(session.launch_id) and execution is not None and execution.status == ExecutorStatus.READY


def resume_facts(
    session: TaskSession, *, workspace: WorkspaceState | None = None, ever_prompted: bool | None = None
) -> ResumeFacts:
    """What is known of a session; ``workspace`` and ``ever_prompted`` where somebody has just looked."""
    execution = execution_of(session)
    gone = session.error_code == WORKTREE_MISSING or (
        execution is not None and execution.error_code == WORKTREE_MISSING
    )
    seen = workspace or (WorkspaceState.GONE if gone else WorkspaceState.PRESENT)
    return ResumeFacts(
        session_state=SessionState(session.state),
        task_archived=session.task.is_over,
        give_up=session.state == SessionState.FAILED,
        running=is_running(session, execution),
        last_seen_at=execution.last_seen_at if execution else None,
        known_dead=not session.launch_id,
        workspace=seen,
        context_mismatch=session.context_mismatch,
        ever_prompted=session.runs.exists() if ever_prompted is None else ever_prompted,
        type_supports_resume=agent_type(session.agent_profile.agent_type).supports_session_resume,
        profile_supports_resume=session.agent_profile.supports_session_resume,
        probed_supports_resume=execution.supports_session_resume if execution else None,
        has_token=bool(execution and execution.resume_token),
        token_rejected=bool(execution and execution.rejected_resume_token and not execution.resume_token),
        history_allowed=history_allowed(session),
        has_row=execution is not None,
        desired_state=DesiredState(session.desired_state),
        stopped_by_user=session.stopped_by_user,
    )


def assess_session(session: TaskSession, now: datetime | None = None) -> Assessment:
    """Whether, why and how this session can be resumed."""
    return assess(resume_facts(session), now or timezone.now())


def assess_start(session: TaskSession, mode: str) -> ModeVerdict:
    """What a start in ``mode`` comes to, whatever the agent seemed to be a moment ago."""
    return assess_mode(assess_session(session).if_dead, mode)
