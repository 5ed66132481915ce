"""What a session is doing, in short: the chips of a list row, one sentence, and the banner with its buttons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from executors_app.domain import ExecutorStatus
from executors_app.models import ExecutorRunning
from sessions_app.domain.agent_programs import NEEDS_PERSON_CODES
from sessions_app.domain.attention import excerpt
from sessions_app.domain.banners import Banner, BannerFacts, banner
from sessions_app.domain.derived_status import DerivedStatus
from sessions_app.domain.restart_rules import WaitReason
from sessions_app.domain.resumability import Assessment, Mode, Reason, assess_mode, token_was_rejected
from sessions_app.domain.states import ENDED_STATES, PromptState, SessionState, WorkState
from sessions_app.domain.transient_errors import Retry
from sessions_app.domain.wait_tokens import WaitKind
from sessions_app.models import TaskSession
from sessions_app.pages.labels import (
    DERIVED_STATUS_LABELS,
    RECONNECTING_LABEL,
    WORK_STATE_LABELS,
    Label,
    session_state_label,
)
from sessions_app.services.board import SessionRow

_IMPLIED_BY_STATE: Final[Mapping[str, frozenset[str]]] = {
    SessionState.RUNNING: frozenset({DerivedStatus.RUNNING}),
    SessionState.STARTING: frozenset({DerivedStatus.RUNNING, DerivedStatus.IDLE}),
}
"""The derived statuses that a state says already; of all others ``idle``."""
_REST_STATES: Final = frozenset({DerivedStatus.IDLE})
_MARK_LABELS: Final = (
    ("asks", Label("Asks for permission", "ask")),
    ("doubts", Label("Prompt in doubt", "ask")),
    ("cut_short", Label("Turn cut short", "ask")),
    ("overdue", Label("Prompt waits too long", "ask")),
    ("memory", Label("Memory lost", "ask")),
    ("looks", Label("Needs a look")),
)
_WITHOUT_CHIP: Final = Label("Silent for long", "ask")


def attention_label(session: TaskSession) -> Label:
    """Why a session (of ``with_marks``) needs somebody, in a word; else its state."""
    marks = (word for name, word in _MARK_LABELS if getattr(session, name))
    return next(marks, session_state_label(session.state, session.error_code, has_agent=session.has_agent))


def session_chips(row: SessionRow) -> dict[str, Any]:
    """A session with its chips: the state, what the derived status and the work add to it, and the marks."""
    session = row.session
    marks = [word for name, word in _MARK_LABELS if getattr(session, name)]
    if session.stalled_since is not None:
        marks.append(_WITHOUT_CHIP)
    return {
        "session": session,
        "chips": _chips(row) + marks,
        "needy": bool(marks)
        or getattr(session, "raised", False)
        or (
            session.state == SessionState.ERROR
            and (session.next_restart_at is None or session.error_code in NEEDS_PERSON_CODES)
        ),
        "told": f"{session_state_label(session.state).text}; {DERIVED_STATUS_LABELS[DerivedStatus(row.derived)].text}; "
        f"{_work_state_label(session.work_state).text}",
    }


def _chips(row: SessionRow) -> list[Label]:
    if row.looks_after:
        return [RECONNECTING_LABEL]
    session, said = row.session, _IMPLIED_BY_STATE.get(row.session.state, _REST_STATES)
    # An agent that asks does not work: the mark says what it does, as the session's own page does.
    asks = row.derived == DerivedStatus.WAITING and getattr(session, "asks", False)
    chips = [] if asks else [session_state_label(session.state, session.error_code, has_agent=session.has_agent)]
    if row.derived not in said and not asks:
        chips.append(DERIVED_STATUS_LABELS[DerivedStatus(row.derived)])
    if session.work_state == WorkState.DONE and session.state != SessionState.COMPLETED:
        chips.append(WORK_STATE_LABELS[WorkState.DONE])
    return chips


def _work_state_label(state: str) -> Label:
    return WORK_STATE_LABELS[WorkState(state)] if state in list(WorkState) else Label(state, "bad")


_STATE_SENTENCES: Final[Mapping[str, str]] = {
    SessionState.CREATED: "Nothing has been started yet. Your first prompt starts the agent.",
    SessionState.STARTING: "The agent is starting. What you write waits for it in the queue.",
    SessionState.RUNNING: "The agent is at work. What you write meanwhile waits in the queue.",
    SessionState.WAITING_FOR_INPUT: "It is your turn: the agent has finished, and waits for your next prompt.",
}
_IDLE_SENTENCES: Final = "The agent is not running. Your next prompt starts it again."


def status_sentence(status: Mapping[str, Any]) -> str:
    """From a session's status; empty where only a banner knows."""
    if status["wait"] and status["wait"]["kind"] != WaitKind.PERMISSION:
        return "The session waits for something from outside. It goes on by itself when that has come."
    if status["state"] == SessionState.WAITING_FOR_INPUT and not status["is_agent_running"]:
        return _IDLE_SENTENCES
    return _STATE_SENTENCES.get(status["state"], "")


MISMATCH_ROW: Final = 6


@dataclass(frozen=True, slots=True)
class BannerButton:
    """One way to go on: a start in ``mode``, another action, or a link to a place of this page or of the task's."""

    text: str
    mode: str = ""
    place: str = ""
    act: str = ""
    view: str = ""
    """The name of a view of the session that it is posted to."""
    task_change: str = ""
    """What to ask of the task, as a last part of its address."""


RESUME = BannerButton("Resume session", Mode.AUTO)
TRY_AGAIN = BannerButton("Try again", Mode.AUTO)
START_FRESH = BannerButton("Start fresh", Mode.FRESH_START)
ACCEPT = BannerButton("Go on with the loaded conversation", Mode.ACCEPT_MISMATCH)
OLD_CONVERSATION = BannerButton("Try the old conversation again", Mode.RESUME)
START_FRESH_HERE = BannerButton("Start fresh in this workspace", Mode.FRESH_START)
RETRY = BannerButton("Retry", Mode.AUTO)
RETRY_WORKSPACE = BannerButton("Retry", Mode.WORKSPACE_ONLY)
WORKSPACE = BannerButton("Open the workspace without the agent", Mode.WORKSPACE_ONLY)
NEW_SESSION = BannerButton("Create new session", place="new-session")
TAKE_OVER = BannerButton("New session in this worktree", place="take-over")
REVIEW = BannerButton("Review the prompts", place="unsettled")
ANSWER = BannerButton("Answer", place="permissions")
CANCEL = BannerButton("Cancel turn", act="cancel")
WAIT_AGAIN = BannerButton("Wait again", view="session-wait-again")
CONTINUE_WAIT = BannerButton("Continue", act="continue-wait")
STOP = BannerButton("Stop agent", act="stop")
REOPEN = BannerButton("Reopen task", task_change="reopen")
UNARCHIVE = BannerButton("Unarchive task", task_change="unarchive")

_BUTTONS: Final[Mapping[str, tuple[BannerButton, ...]]] = {
    "resume": (RESUME,),
    "try_again": (TRY_AGAIN, START_FRESH, NEW_SESSION),
    "fresh_start": (START_FRESH_HERE, TAKE_OVER, NEW_SESSION),
    "new_session": (START_FRESH_HERE, TAKE_OVER, NEW_SESSION),
    "review_prompts": (REVIEW,),
    "answer": (ANSWER,),
    "wait": (WAIT_AGAIN, CONTINUE_WAIT),
    "cancel": (CANCEL,),
    "stop": (STOP,),
    "reopen": (REOPEN,),
    "unarchive": (UNARCHIVE,),
}


def build_banner(
    session: TaskSession, status: Mapping[str, Any], execution: ExecutorRunning | None, assessment: Assessment
) -> Banner | None:
    """The one thing to say above the composer, if there is one."""
    return banner(
        BannerFacts(
            session_state=_effective_state(session, status),
            executor_status=_executor_status(execution),
            assessment=assessment,
            task_end=session.task.end,
            error_code=status["error_code"],
            error_message=status["error_message"] or (execution.error_message if execution else ""),
            recovering=status["recovering"],
            continuing=status["continuing"],
            **_queue_position_text(status["start_wait"]),
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
            retry=_retry_text(status["retry"]),
            stalled_since=session.stalled_since,
            interrupted_wait=excerpt(ended["reason"]) if (ended := status["interrupted_wait"]) else None,
            wait_ended_at=_parse_time(ended["at"]) if ended else None,
            cancel_ignored_since=_parse_time(status["cancel_ignored_since"]),
            capability_note=status["capability_note"],
        )
    )


def _queue_position_text(told: Mapping[str, Any] | None) -> dict[str, Any]:
    """Why it waits to be started, and how many are before it."""
    if told is None:
        return {}
    full = told["reason"] == WaitReason.CAPACITY
    return {"queued_for_capacity": full, "waits_for_turn": not full, "starts_before": told["before"]}


def _retry_text(told: Mapping[str, Any] | None) -> Retry | None:
    if told is None:
        return None
    return Retry(told["error_code"], told["error_message"], told["attempt"], told["of"], _parse_time(told["at"]))


def _parse_time(told: str | None) -> datetime | None:
    return datetime.fromisoformat(told) if told else None


def _effective_state(session: TaskSession, status: Mapping[str, Any]) -> SessionState:
    """A session with an open start order is starting, whether or not somebody has begun with it."""
    if session.state not in list(SessionState):
        return SessionState.ERROR
    state = SessionState(session.state)
    starts = status["starting"] and state not in ENDED_STATES and not session.next_restart_at
    return SessionState.STARTING if starts else state


def _executor_status(execution: ExecutorRunning | None) -> ExecutorStatus | None:
    known = execution is not None and execution.status in list(ExecutorStatus)
    return ExecutorStatus(execution.status) if execution is not None and known else None


def banner_buttons(said: Banner, assessment: Assessment, *, takes_over: bool = False) -> list[BannerButton]:
    """What the banner offers, without starts that would be refused.

    ``takes_over``: whether a new session could go on in the worktree.
    """
    offered = _resume_choices(assessment) if said.action == "choose_conversation" else _BUTTONS.get(said.action, ())
    if said.action == "review_prompts":  # the prompts can be settled later, and the agent may be wanted now
        offered = (*offered, *_beside_prompts(assessment))
    takes_over = takes_over and assessment.cause.resume_reason is not Reason.WORKTREE_MISSING
    offered = tuple(button for button in offered if takes_over or button is not TAKE_OVER)
    return [button for button in offered if not button.mode or assess_mode(assessment, button.mode).allowed]


def _beside_prompts(assessment: Assessment) -> tuple[BannerButton, ...]:
    """What can be done with the agent while prompts wait to be reviewed: as without them."""
    if assessment.needs_resume or assessment.resume_reason is Reason.STOPPED_BY_USER:
        return (RESUME,)
    if assessment.resume_reason is Reason.GAVE_UP:
        return _BUTTONS["try_again"]
    if assessment.row <= 2 or assessment.resume_reason is Reason.TERMINAL_STATE:
        return ()
    if assessment.cause.row == MISMATCH_ROW or token_was_rejected(assessment):
        return _resume_choices(assessment)
    return () if assessment.is_resumable else _BUTTONS["new_session"]


def retry_buttons(execution: ExecutorRunning | None, assessment: Assessment) -> BannerButton | None:
    """What can be tried with an execution that has failed: with its agent, or at least its workspace."""
    if execution is None or execution.status != ExecutorStatus.ERROR:
        return None
    return next((one for one in (RETRY, RETRY_WORKSPACE) if assess_mode(assessment, one.mode).allowed), None)


def _resume_choices(assessment: Assessment) -> tuple[BannerButton, ...]:
    first = ACCEPT if assessment.cause.row == MISMATCH_ROW else OLD_CONVERSATION
    return (first, START_FRESH)
