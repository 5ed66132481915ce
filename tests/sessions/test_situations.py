"""The situation of a session: one ordered table for pages, lists and the API."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pytest

from executors_app.wire.executions import WorkspaceState
from scripts.documents.examples import NOW, RESUME
from sessions_app.attention.rules.notices import ATTENTION_KIND_LABELS, AttentionKind
from sessions_app.board.services import board
from sessions_app.kernel.rules.states import DesiredState, SessionState
from sessions_app.recovery.rules.history import UNKNOWN_FACTS
from sessions_app.recovery.rules.resumability import assess
from sessions_app.sessions.rules.situation_facts import LABELS, Code, IdleReason, SituationFacts
from sessions_app.sessions.rules.situations import idle_situation, situation, status_label
from sessions_app.sessions.services import situations
from sessions_app.starts.rules.restart_rules import WaitReason
from sessions_app.turns.rules.transient_errors import Retry

S = SessionState
AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(SituationFacts)}
FACT_NAMES = set(DEFAULTS)


def facts_of(resume: Mapping[str, Any] | None = None, **changes: Any) -> SituationFacts:
    """Return the facts of a session without a running agent; ``resume`` changes its assessment."""
    known = replace(RESUME, **(resume or {}))
    made = SituationFacts(
        known.session_state,
        desired_state=known.desired_state,
        agent_running=known.running,
        assessment=assess(known, NOW),
        policy="auto",
        policy_source="deployment",
    )
    return replace(made, **changes)


UP = {"running": True, "known_dead": False}
ALONE: dict[str, Any] = {"session_state": S.RUNNING, "work_state": "working", "works_alone": True}
LOST = {"type_supports_resume": False}
REJECTED = {"has_token": False, "token_rejected": True}
STOPPED = {"desired_state": DesiredState.STOPPED, "stopped_by_user": True}
RETRY = Retry("provider_overloaded", "Overloaded", 1, 5, AT)

# the facts, and the situation's code, level, part of its text, and action
TABLE: list[tuple[SituationFacts, Code, str, str, str]] = [
    (facts_of({"session_state": S.COMPLETED}), Code.OVER, "info", "This session is complete.", "new_session"),
    (facts_of({"task_archived": True}, task_end="archived"), Code.OVER, "info", "This task is archived.", "unarchive"),
    (facts_of({"task_archived": True}, task_end="done"), Code.OVER, "info", "This task is done.", "reopen"),
    (facts_of({"session_state": S.COMPLETED}, task_end="cancelled"), Code.OVER, "info", "is cancelled.", "reopen"),
    (
        facts_of(UP, unattended_host="build-2", error_code="unreachable", recovering=True, supervised=False),
        Code.HOST_UNATTENDED,
        "warning",
        "The host of this session, build-2, has no supervisor. Its agent may still be working; nothing was stopped.",
        "",
    ),
    (
        facts_of(error_code="host_lost", error_message="The host build-2 was declared lost.", session_state=S.ERROR),
        Code.HOST_LOST,
        "error",
        "The host build-2 was declared lost.",
        "try_again",
    ),
    (facts_of(recovering=True), Code.RECOVERING, "info", "reconnecting to this session", ""),
    (facts_of(recovering=True, supervised=False), Code.SUPERVISOR_STARTING, "info", "no supervisor", ""),
    (
        facts_of(error_code="unreachable", session_state=S.ERROR),
        Code.UNREACHABLE,
        "warning",
        "working; nothing was stopped",
        "",
    ),
    (facts_of(error_code="disk_full", error_message="The disk is full."), Code.DISK, "error", "disk is full", ""),
    (facts_of(UP, pending_permissions=1), Code.PERMISSION, "warning", "asks for permission", "answer"),
    (facts_of(UP, pending_questions=1), Code.QUESTION, "warning", "asks a question", "answer"),
    (facts_of(UP, held_prompts=2), Code.HELD, "warning", "whether the agent received 2 prompts", "review_prompts"),
    (
        facts_of({"workspace": WorkspaceState.GONE}),
        Code.WORKTREE_MISSING,
        "error",
        "worktree of this session is gone",
        "new_session",
    ),
    (
        facts_of({"session_state": S.FAILED}),
        Code.GAVE_UP,
        "error",
        "not started again automatically",
        "try_again",
    ),
    (
        facts_of({"context_mismatch": True}),
        Code.CONTEXT_MISMATCH,
        "error",
        "Choose how to continue",
        "choose_conversation",
    ),
    (facts_of(starting=True, supervised=False), Code.NO_SUPERVISOR, "warning", "No supervisor is running", ""),
    (facts_of(start_reason="capacity", starts_before=1), Code.CAPACITY, "info", "Too many agents run", ""),
    (facts_of(start_reason="host", start_host="build-1"), Code.HOST, "info", "build-1 takes no new sessions", ""),
    (
        facts_of(session_state="STARTING", start_reason="launch", start_text="No node can take its Pod yet: no room."),
        Code.STARTING,
        "info",
        "The agent is starting. No node can take its Pod yet: no room.",
        "",
    ),
    (
        facts_of(start_reason="placement", start_text="No host has it."),
        Code.PLACEMENT,
        "warning",
        "No host has it.",
        "",
    ),
    (facts_of(start_reason="turn"), Code.START_QUEUE, "info", "waits for its turn", ""),
    (
        facts_of(session_state=S.ERROR, error_code="program_missing", error_message="X is not installed."),
        Code.PROGRAM,
        "error",
        "X is not installed.",
        "try_again",
    ),
    (
        facts_of(next_restart_at=NOW, attempts=2, session_state=S.ERROR),
        Code.BACKING_OFF,
        "warning",
        "The next one is at 12:00:00 UTC (attempt 3)",
        "try_again",
    ),
    (
        facts_of(next_restart_at=NOW, attempts=2),
        Code.BACKING_OFF,
        "warning",
        "The agent ended unexpectedly. It restarts at 12:00:00 UTC (restart 3)",
        "try_again",
    ),
    (facts_of(LOST), Code.NOT_RESUMABLE, "error", "doesn’t support resuming. Start a new session.", "new_session"),
    (facts_of({"has_token": False}), Code.MISSING_RESUME_TOKEN, "error", "never reported", "fresh_start"),
    (
        facts_of(REJECTED),
        Code.TOKEN_REJECTED,
        "warning",
        "starts a new conversation and does not know",
        "choose_conversation",
    ),
    (
        facts_of(REJECTED | {"history_allowed": True}),
        Code.TOKEN_REJECTED,
        "warning",
        "receives the conversation so far",
        "choose_conversation",
    ),
    (facts_of(overdue_prompts=2), Code.OVERDUE, "warning", "2 prompts have waited longer", "try_again"),
    (
        facts_of(UP, suspended=True, suspended_until=AT, suspension_message="Your limit is reached"),
        Code.SUSPENDED,
        "warning",
        f"is sent to the agent before {AT:%Y-%m-%d} 12:00:00 UTC",
        "go_on",
    ),
    (facts_of(UP, suspended=True), Code.SUSPENDED, "warning", "The session is suspended.", "go_on"),
    (
        facts_of(UP, suspended=True, suspension_reason="usage_limit"),
        Code.SUSPENDED,
        "warning",
        "usage limit is reached",
        "go_on",
    ),
    (
        facts_of(UP, suspended=True, suspended_until=AT, continuation="continue"),
        Code.SUSPENDED,
        "warning",
        f"is sent to the agent before {AT:%Y-%m-%d} 12:00:00 UTC",
        "go_on_or_cancel",
    ),
    (
        facts_of(
            UP,
            over_budget=True,
            budget_sentence="The team’s budget for today of 5 tokens is used up.",
            budget_action="open_team_budget",
        ),
        Code.BUDGET,
        "warning",
        "budget for today of 5 tokens",
        "open_team_budget",
    ),
    (
        facts_of(UP, suspended=True, suspension_reason="credit_exhausted"),
        Code.SUSPENDED,
        "warning",
        "account has no credit left",
        "go_on",
    ),
    (
        facts_of(UP, suspended=True, suspended_until=AT, suspension_reason="provider_overloaded"),
        Code.SUSPENDED,
        "warning",
        "provider is overloaded. Nothing is sent to the agent before",
        "go_on",
    ),
    (facts_of(UP, retrying=True, retry=RETRY), Code.RETRYING, "warning", "retried at 12:00:00 UTC (1 of 5)", "cancel"),
    (facts_of(UP, cancel_ignored_since=AT), Code.CANCEL_IGNORED, "warning", "cancel its turn at 12:00:00 UTC", "stop"),
    (
        facts_of(UP, waits_by_itself=True, waits_by_itself_until=AT),
        Code.OWN_WAIT,
        "info",
        f"says that it waits until {AT:%Y-%m-%d} 12:00:00 UTC and then goes on",
        "cancel",
    ),
    (facts_of(UP, waits_by_itself=True), Code.OWN_WAIT, "info", "waits for the end of a limit and then", "cancel"),
    (facts_of(UP, stalled_since=AT), Code.STALLED, "info", "has not responded since 12:00:00 UTC", "cancel"),
    (facts_of(session_state=S.STARTING), Code.STARTING, "info", "The agent is starting.", ""),
    (
        facts_of(session_state=S.STARTING, load_limit=240.0),
        Code.STARTING,
        "info",
        "The agent is loading its conversation",
        "",
    ),
    (
        facts_of(session_state=S.STARTING, load_limit=240.0, load_since=AT),
        Code.STARTING,
        "info",
        "The agent has been loading its conversation since 12:00:00 UTC.",
        "",
    ),
    (facts_of(UP, waits_outside=True), Code.OUTSIDE, "", "waiting for an external result", ""),
    (
        facts_of(UP, interrupted_wait="The build", wait_ended_at=AT),
        Code.WAIT_INTERRUPTED,
        "warning",
        "“The build” ended without an answer",
        "wait",
    ),
    (facts_of(UP, continuing=True), Code.CONTINUING, "info", "asks it to continue", ""),
    (facts_of(UP, interrupted_prompts=1), Code.INTERRUPTED, "warning", "A prompt was interrupted", "review_prompts"),
    (facts_of(STOPPED), Code.STOPPED, "info", "was stopped", "resume"),
    (facts_of(UP | STOPPED), Code.STOPPED, "", "is being stopped", ""),
    (facts_of(owner_left=True), Code.OWNER_LEFT, "info", "has left the team", "resume"),
    (facts_of(session_state=S.ERROR, error_message="No such image."), Code.ERROR, "error", "such image.", "try_again"),
    (
        facts_of(asleep=True, cut_off=True, last_run_state="failed"),
        Code.CUT_OFF,
        "info",
        "Nothing continues the turn automatically",
        "send_again",
    ),
    (
        facts_of(UP, cut_off=True, cut_off_has_worked=True, last_run_state="failed"),
        Code.CUT_OFF,
        "info",
        "Nothing continues the turn automatically",
        "continue_turn",
    ),
    (facts_of(queued_prompts=3), Code.QUEUED, "info", "3 prompts wait for the agent.", "resume"),
    (facts_of(UP, queued_prompts=1), Code.QUEUED, "info", "A prompt waits for the agent.", ""),
    (facts_of(UP, history_armed=True), Code.HISTORY_ARMED, "info", "started a new conversation", ""),
    (facts_of(asleep=True), Code.ASLEEP, "info", "asleep", "resume"),
    (facts_of({"has_agent": False}, has_agent=False), Code.WORKSPACE, "info", "no agent runs in it", ""),
    (facts_of(policy="manual"), Code.POLICY, "info", "The agent is not running.", "resume"),
    (facts_of(), Code.RESTART_DUE, "info", "The agent is not running.", "resume"),
    (facts_of({"ever_prompted": False}), Code.RESTART_DUE, "info", "The agent is not running.", "resume"),
    (facts_of(UP, last_run_state="failed"), Code.TURN_FAILED, "", "The turn failed.", ""),
    (
        facts_of(UP, last_run_state="failed", last_run_reason="auth_required"),
        Code.TURN_FAILED,
        "warning",
        "the agent is not logged in",
        "",
    ),
    (facts_of(UP), Code.YOUR_TURN, "", "The agent is idle.", ""),
    (facts_of(UP, session_state=S.RUNNING, work_state="working"), Code.WORKING, "", "The agent is working.", ""),
    (facts_of(UP, **ALONE), Code.WORKING, "", "The agent is working on its own.", ""),
    (facts_of(UP, work_state="working"), Code.WORKING, "", "The agent is working on its own.", ""),
    (facts_of(UP, **ALONE, queued_prompts=1), Code.QUEUED, "info", "working on its own. A prompt waits", "cancel"),
]
IDS = [f"{number}-{row[1]}" for number, row in enumerate(TABLE)]


@pytest.mark.parametrize(("facts", "code", "level", "text", "action"), TABLE, ids=IDS)
def test_first_row_that_holds_is_the_situation(
    facts: SituationFacts, code: Code, level: str, text: str, action: str
) -> None:
    found = situation(facts)
    assert (found.code, found.level, found.action) == (code, level, action)
    assert text in found.text


def test_every_situation_is_in_the_table() -> None:
    rare = {Code.DAMAGED, Code.NOT_RUNNING, Code.OTHER}
    assert {row[1] for row in TABLE} | rare == set(Code)


def facts_built_in(module: ModuleType) -> set[str]:
    """Return the names of the facts that a module gives to ``SituationFacts``."""
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Call)]
    (built,) = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "SituationFacts"]
    return {str(keyword.arg) for keyword in built.keywords}


LATER_ON_PAGES = {"interrupted_prompts", "opens_workspace", "load_limit", "load_since"}
"""What ``add_page_facts`` loads."""


def test_pages_load_every_fact() -> None:
    assert facts_built_in(situations) | LATER_ON_PAGES == FACT_NAMES


UNKNOWN_TO_LISTS: dict[str, Any] = {
    "assessment": assess(RESUME, NOW),
    "workspace_ready": True,
    "policy": "manual",
    "policy_source": "team",
    "error_message": "It died.",
    "supervised": False,
    "opens_workspace": True,
    "load_limit": 60.0,
    "load_since": AT,
    "starts_before": 3,
    "start_host": "build-1",
    "continuing": True,
    "queued_prompts": 1,
    "overdue_prompts": 1,
    "held_prompts": 1,
    "interrupted_prompts": 1,
    "wait_until": AT,
    "owner_left": True,
    "history": UNKNOWN_FACTS,
    "history_armed": True,
    "attempts": 2,
    "retry": RETRY,
    "suspended_until": AT,
    "suspension_message": "You have hit your limit.",
    "continuation": "continue",
    "cut_off": True,
    "cut_off_reason": "credit_exhausted",
    "cut_off_has_worked": True,
    "budget_sentence": "The team’s budget for today of 5 tokens is used up.",
    "budget_end": "It renews at midnight, UTC.",
    "budget_action": "open_team_budget",
    "waits_by_itself": True,
    "waits_by_itself_until": AT,
    "stalled_since": AT,
    "interrupted_wait": "The build of main",
    "wait_ended_at": AT,
    "cancel_ignored_since": AT,
    "capability_note": "It loses its memory.",
    "background_ends": True,
    "background_is_current": False,
}
"""The facts that lists do not load, because that takes queries for each session, with a value that they may have."""

WAIT_FACTS = ["interrupted_wait", "wait_ended_at"]
"""Only known together."""


def test_list_of_unknown_facts_is_complete() -> None:
    assert set(UNKNOWN_TO_LISTS) == FACT_NAMES - facts_built_in(board)
    assert [name for name, value in UNKNOWN_TO_LISTS.items() if value == DEFAULTS[name]] == []


@pytest.mark.parametrize("name", UNKNOWN_TO_LISTS)
def test_fact_that_lists_do_not_load_changes_no_label(name: str) -> None:
    names = [name]
    if name in WAIT_FACTS:
        names = WAIT_FACTS
    for facts in [row[0] for row in TABLE]:
        known = replace(facts, **{each: UNKNOWN_TO_LISTS[each] for each in names})
        unknown = replace(facts, **{each: DEFAULTS[each] for each in names})
        assert status_label(known) == status_label(unknown), facts


@pytest.mark.parametrize(("facts", "code"), [(row[0], row[1]) for row in TABLE], ids=IDS)
def test_lists_show_the_same_label_as_the_page(facts: SituationFacts, code: Code) -> None:
    """A list knows neither the assessment nor facts that need queries for each session."""
    unknown = {name: DEFAULTS[name] for name in FACT_NAMES - facts_built_in(board)}
    if facts.start_reason not in ("", WaitReason.LAUNCH):
        unknown["start_reason"] = WaitReason.TURN
    assert status_label(replace(facts, **unknown)) == status_label(facts), code


LABELLED: list[tuple[SituationFacts, str]] = [
    (facts_of(recovering=True), "Reconnecting"),
    (facts_of(error_code="unreachable"), "Unknown"),
    (facts_of(asleep=True), "Asleep"),
    (facts_of(next_restart_at=NOW), "Restart scheduled"),
    (facts_of(start_reason="capacity"), "Waiting to start"),
    (facts_of(UP, suspended=True), "Suspended"),
    (facts_of(UP, suspended=True, suspension_reason="usage_limit"), "Usage limit"),
    (facts_of(UP, suspended=True, suspension_reason="credit_exhausted"), "No credit"),
    (facts_of(UP, suspended=True, suspension_reason="provider_overloaded"), "Provider error"),
    (facts_of(UP, over_budget=True), "Over budget"),
    (facts_of(UP, retrying=True), "Retrying"),
    (facts_of(STOPPED), "Stopped"),
    (facts_of(last_run_state="failed"), "Turn failed"),
    (facts_of(UP, last_run_state="completed"), "Your turn"),
    (facts_of(starting=True), "Starting"),
    (facts_of({"session_state": S.FAILED}), "Given up"),
    (facts_of(task_end="done"), "Idle"),
]


@pytest.mark.parametrize(("facts", "label"), LABELLED, ids=[label for _, label in LABELLED])
def test_label_says_what_the_session_is_doing(facts: SituationFacts, label: str) -> None:
    assert status_label(facts).text == label


@pytest.mark.parametrize(
    ("ready", "next_step"),
    [
        (True, "Create new session to continue messaging."),
        (False, "This agent cannot resume previous sessions. Create a new session."),
    ],
)
def test_agent_without_resume_is_explained_by_its_workspace(ready: bool, next_step: str) -> None:
    assert situation(facts_of(LOST, workspace_ready=ready)).next_step == next_step


@pytest.mark.parametrize("queued", [0, 1])
def test_lost_conversation_says_that_queued_prompts_wait_for_a_choice(queued: int) -> None:
    step = situation(facts_of(REJECTED, queued_prompts=queued)).next_step
    assert ("stay in the queue until then" in step) is bool(queued)


def test_prompt_in_doubt_comes_before_a_lost_agent() -> None:
    assert situation(facts_of(LOST, held_prompts=1)).action == "review_prompts"


# the facts, the reason, a part of the text, a part of the next step
IDLE: list[tuple[SituationFacts, IdleReason | None, str, str]] = [
    (facts_of(UP), IdleReason.YOUR_TURN, "idle", "prompt"),
    (facts_of(UP, work_state="working"), None, "", ""),
    (facts_of(UP, session_state="COMPLETED"), None, "", ""),
    (facts_of(UP, task_end="done"), None, "", ""),
    (
        facts_of(UP, suspended=True, suspension_reason="usage_limit", suspended_until=AT),
        IdleReason.SUSPENDED,
        "usage limit",
        "until then",
    ),
    (facts_of(UP, over_budget=True), IdleReason.BUDGET, "budget holds", "stays in the queue"),
    (facts_of(UP, unattended_host="b"), IdleReason.HOST_UNATTENDED, "no supervisor", "Prompts you send now wait for"),
    (
        facts_of(unattended_host="b", starting=True, queued_prompts=2),
        IdleReason.HOST_UNATTENDED,
        "The host of this session, b, has no supervisor.",
        "Ask an administrator to start one on b (`manage.py supervise`). The 2 queued prompts wait for that.",
    ),
    (facts_of(UP, recovering=True), IdleReason.RECOVERING, "just started", "Wait"),
    (facts_of(UP, recovering=True, supervised=False), IdleReason.NO_SUPERVISOR, "no supervisor", "administrator"),
    (facts_of(UP, pending_permissions=1, work_state="working"), IdleReason.PERMISSION, "permission", "Allow"),
    (facts_of(UP, pending_questions=2, work_state="working"), IdleReason.QUESTION, "2 questions", "Answer"),
    (facts_of(UP, waits_outside=True, wait_until=AT), IdleReason.OUTSIDE, "external", "end the wait"),
    (facts_of(session_state="FAILED", attempts=5), IdleReason.GAVE_UP, "5 attempts", "Try again"),
    (facts_of(desired_state="stopped"), IdleReason.STOPPED, "stopped", "Resume session"),
    (facts_of(starting=True), IdleReason.STARTING, "starting", "queued"),
    (facts_of(starting=True, supervised=False), IdleReason.NO_SUPERVISOR, "No supervisor", "administrator"),
    (facts_of(start_reason="capacity", starts_before=1), IdleReason.CAPACITY, "Too many", "One session is before"),
    (facts_of(start_reason="capacity"), IdleReason.CAPACITY, "Too many", "stop a session"),
    (facts_of(start_reason="host", start_host="build-1"), IdleReason.HOST, "build-1 takes no", "back into service"),
    (facts_of(start_reason="placement", start_text="Nowhere."), IdleReason.PLACEMENT, "Nowhere.", "administrator"),
    (facts_of(start_reason="turn", starts_before=7), IdleReason.TURN, "waits for its turn", "7 sessions are before"),
    (facts_of(owner_left=True), IdleReason.OWNER_LEFT, "left the team", "member"),
    (
        facts_of(next_restart_at=AT, error_message="boom", session_state="ERROR"),
        IdleReason.BACKING_OFF,
        "12:00:00",
        "Boom. “Try again”",
    ),
    (facts_of(error_code="unreachable", session_state="ERROR"), IdleReason.UNREACHABLE, "not answer", "machine"),
    (facts_of(error_code="unreachable", starting=True), IdleReason.UNREACHABLE, "not answer", "machine"),
    (facts_of(session_state="ERROR", error_message="boom"), IdleReason.ERROR, "Boom.", "try again"),
    (facts_of(UP, held_prompts=1), IdleReason.IN_DOUBT, "not known", "Send it again"),
    (facts_of(UP, held_prompts=1, work_state="working"), None, "", ""),
    (facts_of(asleep=True), IdleReason.ASLEEP, "asleep", "wakes"),
    (facts_of(policy="manual", policy_source="team"), IdleReason.POLICY, "not running", "the team’s choice"),
    (facts_of(policy="manual"), IdleReason.POLICY, "not running", "Resume session"),
    (facts_of(policy="on_open", policy_source="session"), IdleReason.POLICY, "not running", "own choice"),
    (facts_of(policy="working"), IdleReason.POLICY, "not running", "this installation"),
    (facts_of(policy="working", work_state="working"), IdleReason.NEXT_LOOK, "not running", "automatically"),
    (facts_of(policy="manual", queued_prompts=1), IdleReason.NEXT_LOOK, "not running", "automatically"),
    (facts_of(), IdleReason.NEXT_LOOK, "not running", "automatically"),
    (facts_of(UP, queued_prompts=1), None, "", ""),
]


@pytest.mark.parametrize(("facts", "reason", "text", "step"), IDLE, ids=[f"{n}-{row[1]}" for n, row in enumerate(IDLE)])
def test_idle_reason_comes_with_the_next_step(
    facts: SituationFacts, reason: IdleReason | None, text: str, step: str
) -> None:
    found = idle_situation(facts)
    if reason is None:
        assert found is None
        return
    assert found is not None and found.reason is reason
    assert text in found.text and step in found.next_step
    has_end = reason in (IdleReason.BACKING_OFF, IdleReason.OUTSIDE, IdleReason.SUSPENDED)
    assert found.until == (AT if has_end else None)


def test_every_idle_reason_is_in_the_table() -> None:
    assert {row[1] for row in IDLE} == {*IdleReason, None}


def test_inbox_uses_the_labels_of_the_table() -> None:
    beside = {AttentionKind.WORKFLOW, AttentionKind.RECEIPT, AttentionKind.UNPROVEN, AttentionKind.IDLE}
    beside.add(AttentionKind.OUTPUT_LIMIT)  # the agent works on, so the page shows a notice beside its situation
    beside.add(AttentionKind.FINISH)  # about the branch, whatever the agent does
    beside.add(AttentionKind.SYSTEM)  # about the installation, and no session's
    assert set(ATTENTION_KIND_LABELS) == set(AttentionKind)
    shared = {label for kind, label in ATTENTION_KIND_LABELS.items() if kind not in beside}
    assert shared <= set(LABELS.values())
