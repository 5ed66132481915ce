"""Short summaries of a session: its chips in lists, and its situation with the buttons of the banner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from executors_app.models import ExecutorRunning
from executors_app.wire.executions import ExecutorStatus
from sessions_app.agents.rules.agent_programs import NEEDS_PERSON_CODES
from sessions_app.attention.rules.notices import ATTENTION_KIND_LABELS
from sessions_app.attention.rules.quotations import shorten
from sessions_app.background.services import process_commands
from sessions_app.board.services.board import SessionRow
from sessions_app.board.services.session_needs import SessionNeeds
from sessions_app.kernel.rules.states import DerivedStatus, SessionState, WorkState
from sessions_app.models import TaskSession
from sessions_app.pages.labels import DERIVED_STATUS_LABELS, WORK_STATE_LABELS
from sessions_app.recovery.rules.recovery_choices import OFFERING_ACTIONS, Choice, RecoveryChoice, recovery_choices
from sessions_app.recovery.rules.resumability import (
    UNREACHABLE,
    Assessment,
    Mode,
    Reason,
    assess_mode,
    token_was_rejected,
)
from sessions_app.sessions.rules.situation_facts import LABELS, Code, Label, Situation, state_label
from sessions_app.sessions.rules.situations import status_label
from sessions_app.starts.rules.restart_rules import WaitReason

_INTERRUPTED: Final = frozenset({DerivedStatus.INTERRUPTED_STARTUP, DerivedStatus.INTERRUPTED_WAITING})
"""Derived statuses that get their own chip, because the status label does not show them."""
_NEEDS_LABELS: Final = (
    ("asks", LABELS[Code.PERMISSION]),
    ("questions", LABELS[Code.QUESTION]),
    ("doubts", LABELS[Code.HELD]),
    ("cut_short", LABELS[Code.INTERRUPTED]),
    ("overdue", LABELS[Code.OVERDUE]),
    ("memory", ATTENTION_KIND_LABELS["receipt"]),
    ("looks", ATTENTION_KIND_LABELS["idle"]),
)
"""Label of each field of ``SessionNeeds``, in order of priority: what a person has to do."""


def attention_label(session: TaskSession, needs: SessionNeeds) -> Label:
    """Return why a session needs a person, or else its state."""
    labels = (label for name, label in _NEEDS_LABELS if getattr(needs, name))
    return next(labels, LABELS[Code.UNREACHABLE] if session.error_code == UNREACHABLE else state_label(session.state))


@lru_cache(maxsize=256)
def pill_of(label: Label) -> SafeString:
    """Return a label as HTML; a board has hundreds of them, of a few kinds."""
    return format_html('<span class="pill {}">{}</span>', label.tone, label.text)


def session_chips(row: SessionRow) -> dict[str, Any]:
    """Return a session with its chips: situation, interruption, finished work, and what a person has to do."""
    session = row.session
    needs = [label for name, label in _NEEDS_LABELS if getattr(row.needs, name)]
    if session.stalled_since is not None:
        needs.append(LABELS[Code.STALLED])
    waits = []
    if row.facts.start_reason == WaitReason.LAUNCH:
        waits.append(Label(shorten(row.facts.start_text), "ask"))
    chips = list(dict.fromkeys([status_label(row.facts), *waits, *_status_chips(row), *needs]))
    return {
        "session": session,
        "chips": format_html_join(" ", "{}", ((pill_of(label),) for label in chips)),
        "may_answer": row.needs.asks or row.needs.questions,
        "processes": row.facts.background_process_count,
        "commands": "\n".join(process_commands(session, is_running=row.facts.agent_running)),
        "needy": bool(needs)
        or row.needs.raised
        or (
            session.state == SessionState.ERROR
            and (session.next_restart_at is None or session.error_code in NEEDS_PERSON_CODES)
        ),
        "summary": f"{state_label(session.state).text}; {DERIVED_STATUS_LABELS[DerivedStatus(row.derived)].text}; "
        f"{_work_state_label(session.work_state).text}",
    }


def _status_chips(row: SessionRow) -> list[Label]:
    if row.facts.recovering or row.facts.unattended_host:  # nothing is claimed before a supervisor has checked
        return []
    if row.derived in _INTERRUPTED:
        chips = [DERIVED_STATUS_LABELS[DerivedStatus(row.derived)]]
    else:
        chips = []
    if row.session.work_state == WorkState.DONE and row.session.state != SessionState.COMPLETED:
        chips.append(WORK_STATE_LABELS[WorkState.DONE])
    return chips


def _work_state_label(state: str) -> Label:
    if state in list(WorkState):
        return WORK_STATE_LABELS[WorkState(state)]
    return Label(state, "bad")


@dataclass(frozen=True, slots=True)
class BannerButton:
    """A button of the banner: a start in ``mode``, the action ``act``, or a link to ``place`` on the page."""

    text: str
    mode: str = ""
    place: str = ""
    act: str = ""
    view: str = ""
    """Name of the URL that the button posts to, if it is not a session action."""
    task_change: str = ""
    """A key of ``TASK_CHANGES``: the button changes the task."""


RESUME = BannerButton("Resume session", Mode.AUTO)
RETRY = BannerButton("Retry", Mode.AUTO)
RETRY_WORKSPACE = BannerButton("Retry", Mode.WORKSPACE_ONLY)
WORKSPACE = BannerButton("Open the workspace without the agent", Mode.WORKSPACE_ONLY)
REVIEW = BannerButton("Review prompts", place="unsettled")
ANSWER = BannerButton("Answer", place="permissions")
CANCEL = BannerButton("Cancel turn", act="cancel")
WAIT_AGAIN = BannerButton("Wait again", view="session-wait-again")
CONTINUE_WAIT = BannerButton("Continue", act="continue-wait")
STOP = BannerButton("Stop agent", act="stop")
REOPEN = BannerButton("Reopen task", task_change="reopen")
GO_ON = BannerButton("Go on now", act="go-on")
DO_NOT_CONTINUE = BannerButton("Do not continue", act="cancel")
SEND_AGAIN = BannerButton("Send the prompt again", act="go-on")
CONTINUE_TURN = BannerButton("Continue the turn", act="go-on")
CHANGE_BUDGET = BannerButton("Change the budget", place="budget-tokens")
TEAM_BUDGET = BannerButton("Budget of the team", place="team-budget")
NEXT_STEP = BannerButton("Next step", place="part-banner")
UNARCHIVE = BannerButton("Unarchive task", task_change="unarchive")

_REQUESTS: Final[Mapping[Code, BannerButton]] = {
    Code.PERMISSION: BannerButton("Review", place="permissions"),
    Code.QUESTION: BannerButton("Reply", place="permissions"),
}

_BUTTONS: Final[Mapping[str, tuple[BannerButton, ...]]] = {
    "resume": (RESUME,),
    "review_prompts": (REVIEW,),
    "answer": (ANSWER,),
    "wait": (WAIT_AGAIN, CONTINUE_WAIT),
    "cancel": (CANCEL,),
    "stop": (STOP,),
    "reopen": (REOPEN,),
    "unarchive": (UNARCHIVE,),
    "go_on": (GO_ON,),
    "go_on_or_cancel": (GO_ON, DO_NOT_CONTINUE),
    "send_again": (SEND_AGAIN,),
    "continue_turn": (CONTINUE_TURN,),
    "change_budget": (CHANGE_BUDGET,),
    "open_team_budget": (TEAM_BUDGET,),
}


_PLACES: Final = {Choice.SESSION_IN_WORKTREE: "take-over", Choice.NEW_SESSION: "new-session"}
"""Where on the task's page a choice continues that is not a start of this session."""


def banner_buttons(shown: Situation, assessment: Assessment, *, takes_over: bool = False) -> list[BannerButton]:
    """Return the buttons of the banner, without starts that would be refused.

    ``takes_over``: whether a new session could continue in the worktree.
    """
    choices = [_choice_button(each) for each in recovery_choices(assessment, shares_worktree=takes_over)]
    if shown.action in OFFERING_ACTIONS:
        return choices
    offered = list(_BUTTONS.get(shown.action, ()))
    if shown.action == "review_prompts":  # the prompts can be settled later, and the agent may be wanted now
        offered += _beside_prompts(assessment, choices)
    return [button for button in offered if not button.mode or assess_mode(assessment, button.mode).allowed]


def _choice_button(choice: RecoveryChoice) -> BannerButton:
    return BannerButton(choice.text, choice.mode or "", place=_PLACES.get(choice.choice, ""))


def _beside_prompts(assessment: Assessment, choices: Sequence[BannerButton]) -> Sequence[BannerButton]:
    """Return the buttons for the agent while prompts wait for review: those that it would get without them."""
    if assessment.needs_resume or assessment.resume_reason is Reason.STOPPED_BY_USER:
        return (RESUME,)
    if assessment.resume_reason is Reason.GAVE_UP:
        return choices
    if not assessment.is_at_rest or assessment.resume_reason is Reason.TERMINAL_STATE:
        return ()
    is_lost = assessment.has_mismatch or token_was_rejected(assessment)
    if is_lost or not assessment.is_resumable:
        return choices
    return ()


def main_action(shown: Situation, offered: Sequence[BannerButton], *, works: bool) -> BannerButton | None:
    """Return what a person most likely does next, for the line that stays at the top of the page; None: nothing.

    ``offered`` are the buttons of the banner, ``works`` tells that a turn is open. What needs to be read first is a
    link to it; only a cancel and a plain start are carried out from there.
    """
    if shown.code in _REQUESTS:
        return _REQUESTS[shown.code]
    if works:
        return CANCEL
    if RESUME in offered:
        return BannerButton("Resume", RESUME.mode)
    if offered:
        return NEXT_STEP
    return None


def retry_buttons(execution: ExecutorRunning | None, assessment: Assessment) -> BannerButton | None:
    """Return the retry button for a failed execution: with its agent, or else its workspace only; None if neither."""
    if execution is None or execution.status != ExecutorStatus.ERROR:
        return None
    return next((one for one in (RETRY, RETRY_WORKSPACE) if assess_mode(assessment, one.mode).allowed), None)
