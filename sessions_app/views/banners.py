"""The banner of a session's page and the buttons beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from executors_app.domain import ExecutorStatus
from executors_app.models import ExecutorRunning
from sessions_app.domain.admission import WaitReason
from sessions_app.domain.attention import excerpt
from sessions_app.domain.banners import Banner, BannerFacts, banner
from sessions_app.domain.resumability import Assessment, Mode, Reason, assess_mode, token_was_rejected
from sessions_app.domain.states import ENDED_STATES, PromptState, SessionState
from sessions_app.domain.transient import Retry
from sessions_app.models import TaskSession

MISMATCH_ROW: Final = 6


@dataclass(frozen=True, slots=True)
class Button:
    """One way to go on: a start in ``mode``, another action, or a link to a place of this page or of the task's."""

    text: str
    mode: str = ""
    place: str = ""
    act: str = ""
    view: str = ""
    """The name of a view of the session that it is posted to."""
    task_change: str = ""
    """What to ask of the task, as a last part of its address."""


RESUME = Button("Resume session", Mode.AUTO)
TRY_AGAIN = Button("Try again", Mode.AUTO)
START_FRESH = Button("Start fresh", Mode.FRESH_START)
ACCEPT = Button("Go on with the loaded conversation", Mode.ACCEPT_MISMATCH)
OLD_CONVERSATION = Button("Try the old conversation again", Mode.RESUME)
START_FRESH_HERE = Button("Start fresh in this workspace", Mode.FRESH_START)
RETRY = Button("Retry", Mode.AUTO)
RETRY_WORKSPACE = Button("Retry", Mode.WORKSPACE_ONLY)
WORKSPACE = Button("Open the workspace without the agent", Mode.WORKSPACE_ONLY)
NEW_SESSION = Button("Create new session", place="new-session")
TAKE_OVER = Button("New session in this worktree", place="take-over")
REVIEW = Button("Review the prompts", place="unsettled")
ANSWER = Button("Answer", place="permissions")
CANCEL = Button("Cancel turn", act="cancel")
WAIT_AGAIN = Button("Wait again", view="session-wait-again")
GO_ON = Button("Continue", act="continue-wait")
STOP = Button("Stop agent", act="stop")
REOPEN = Button("Reopen task", task_change="reopen")
UNARCHIVE = Button("Unarchive task", task_change="unarchive")

_BUTTONS: Final[Mapping[str, tuple[Button, ...]]] = {
    "resume": (RESUME,),
    "try_again": (TRY_AGAIN, START_FRESH, NEW_SESSION),
    "fresh_start": (START_FRESH_HERE, TAKE_OVER, NEW_SESSION),
    "new_session": (START_FRESH_HERE, TAKE_OVER, NEW_SESSION),
    "review_prompts": (REVIEW,),
    "answer": (ANSWER,),
    "wait": (WAIT_AGAIN, GO_ON),
    "cancel": (CANCEL,),
    "stop": (STOP,),
    "reopen": (REOPEN,),
    "unarchive": (UNARCHIVE,),
}


def banner_of(
    session: TaskSession, status: Mapping[str, Any], execution: ExecutorRunning | None, assessment: Assessment
) -> Banner | None:
    """The one thing to say above the composer, if there is one."""
    return banner(
        BannerFacts(
            session_state=_state_shown(session, status),
            executor_status=_executor_status(execution),
            assessment=assessment,
            task_end=session.task.end,
            error_code=status["error_code"],
            error_message=status["error_message"] or (execution.error_message if execution else ""),
            recovering=status["recovering"],
            continuing=status["continuing"],
            **_line(status["start_wait"]),
            asleep=status["asleep"],
            queued_prompts=status["queued_prompts"],
            overdue_prompts=status["overdue_prompts"],
            held_prompts=status["held_prompts"],
            interrupted_prompts=session.prompts.filter(state=PromptState.INTERRUPTED, continued_by=None).count(),
            pending_permissions=status["pending_permissions"],
            history=status["history"],
            history_armed=session.inject_history,
            attempts=session.start_attempts,
            next_restart_at=session.next_restart_at,
            retry=_retry(status["retry"]),
            stalled_since=session.stalled_since,
            interrupted_wait=excerpt(ended["reason"]) if (ended := status["interrupted_wait"]) else None,
            wait_ended_at=_moment(ended["at"]) if ended else None,
            cancel_ignored_since=_moment(status["cancel_ignored_since"]),
            capability_note=status["capability_note"],
        )
    )


def _line(told: Mapping[str, Any] | None) -> dict[str, Any]:
    """Why it waits to be started, and how many are before it."""
    if told is None:
        return {}
    full = told["reason"] == WaitReason.CAPACITY
    return {"queued_for_capacity": full, "waits_for_turn": not full, "starts_before": told["before"]}


def _retry(told: Mapping[str, Any] | None) -> Retry | None:
    if told is None:
        return None
    return Retry(told["error_code"], told["error_message"], told["attempt"], told["of"], _moment(told["at"]))


def _moment(told: str | None) -> datetime | None:
    return datetime.fromisoformat(told) if told else None


def _state_shown(session: TaskSession, status: Mapping[str, Any]) -> SessionState:
    """A session with an open start order is starting, whether or not somebody has begun with it."""
    if session.state not in list(SessionState):
        return SessionState.ERROR
    state = SessionState(session.state)
    starts = status["starting"] and state not in ENDED_STATES and not session.next_restart_at
    return SessionState.STARTING if starts else state


def _executor_status(execution: ExecutorRunning | None) -> ExecutorStatus | None:
    known = execution is not None and execution.status in list(ExecutorStatus)
    return ExecutorStatus(execution.status) if execution is not None and known else None


def buttons_of(said: Banner, assessment: Assessment, *, takes_over: bool = False) -> list[Button]:
    """What the banner offers, without starts that would be refused.

    ``takes_over``: whether a new session could go on in the worktree.
    """
    offered = _choices(assessment) if said.action == "choose_conversation" else _BUTTONS.get(said.action, ())
    if said.action == "review_prompts":  # the prompts can be settled later, and the agent may be wanted now
        offered = (*offered, *_beside_prompts(assessment))
    takes_over = takes_over and assessment.cause.resume_reason is not Reason.WORKTREE_MISSING
    offered = tuple(button for button in offered if takes_over or button is not TAKE_OVER)
    return [button for button in offered if not button.mode or assess_mode(assessment, button.mode).allowed]


def _beside_prompts(assessment: Assessment) -> tuple[Button, ...]:
    """What can be done with the agent while prompts wait to be reviewed: as without them."""
    if assessment.needs_resume or assessment.resume_reason is Reason.STOPPED_BY_USER:
        return (RESUME,)
    if assessment.resume_reason is Reason.GAVE_UP:
        return _BUTTONS["try_again"]
    if assessment.row <= 2 or assessment.resume_reason is Reason.TERMINAL_STATE:
        return ()
    if assessment.cause.row == MISMATCH_ROW or token_was_rejected(assessment):
        return _choices(assessment)
    return () if assessment.is_resumable else _BUTTONS["new_session"]


def retry_of(execution: ExecutorRunning | None, assessment: Assessment) -> Button | None:
    """What can be tried with an execution that has failed: with its agent, or at least its workspace."""
    if execution is None or execution.status != ExecutorStatus.ERROR:
        return None
    return next((one for one in (RETRY, RETRY_WORKSPACE) if assess_mode(assessment, one.mode).allowed), None)


def _choices(assessment: Assessment) -> tuple[Button, ...]:
    first = ACCEPT if assessment.cause.row == MISMATCH_ROW else OLD_CONVERSATION
    return (first, START_FRESH)
