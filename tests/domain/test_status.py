"""The derived status and the banner of a session's page."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from executors_app.domain import ExecutorStatus, WorkspaceState
from sessions_app.domain.derived_status import BannerFacts, DerivedStatus, RunFacts, banner, derive_status
from sessions_app.domain.recovery_examples import NOW, RESUME
from sessions_app.domain.resumability import assess
from sessions_app.domain.states import DesiredState, RunState, SessionState
from sessions_app.domain.wait_tokens import TokenState

R, S = RunState, SessionState


R_OPEN = {R.RUNNING, R.WAITING}
ALL_RUNS = [
    RunFacts(state, waited, process_gone, token)
    for state, waited, process_gone, token in product(R, (False, True), (False, True), (None, *TokenState))
]


def what_the_rules_say(run: RunFacts) -> str:
    """Rule 29, sentence by sentence, and the order of design 3; says nothing about how it is computed."""
    holds = {
        "interrupted_startup": (run.state in R_OPEN and run.process_gone)
        or (run.state == R.INTERRUPTED and not run.waited),
        "interrupted_waiting": (run.state == R.WAITING and run.token in {None, TokenState.EXPIRED, TokenState.REVOKED})
        or (run.state == R.INTERRUPTED and run.waited),
        "waiting": run.state == R.WAITING,
        "running": run.state in R_OPEN,
        "idle": True,
    }
    return next(status for status in DerivedStatus if holds[status])


def test_the_status_is_what_the_rules_say_of_every_run_there_can_be() -> None:
    assert len(ALL_RUNS) == 6 * 2 * 2 * 5
    wrong = {
        run: (derive_status(run), what_the_rules_say(run))
        for run in ALL_RUNS
        if derive_status(run) != what_the_rules_say(run)
    }
    assert wrong == {}
    assert {derive_status(run) for run in ALL_RUNS} == set(DerivedStatus), "each of them can be"


@pytest.mark.parametrize(
    ("run", "status"),
    [
        (None, "idle"),
        (RunFacts(R.RUNNING), "running"),
        (RunFacts(R.RUNNING, process_gone=True), "interrupted_startup"),
        (RunFacts(R.WAITING, waited=True), "waiting"),
        (RunFacts(R.WAITING, waited=True, token=TokenState.CONSUMED), "waiting"),
        (RunFacts(R.WAITING, waited=True, token=TokenState.EXPIRED), "interrupted_waiting"),
        (RunFacts(R.WAITING, waited=True, token=TokenState.REVOKED), "interrupted_waiting"),
        (RunFacts(R.WAITING, waited=True, token=None), "interrupted_waiting"),
        (RunFacts(R.WAITING, waited=True, process_gone=True, token=None), "interrupted_startup"),
        (RunFacts(R.RUNNING, waited=True, token=TokenState.CONSUMED), "running"),
        (RunFacts(R.INTERRUPTED), "interrupted_startup"),
        (RunFacts(R.INTERRUPTED, waited=True), "interrupted_waiting"),
        (RunFacts(R.COMPLETED, process_gone=True, token=None), "idle"),
        (RunFacts(R.FAILED, waited=True), "idle"),
        (RunFacts(R.CANCELLED), "idle"),
    ],
)
def test_the_status_follows_from_the_newest_run(run: RunFacts | None, status: str) -> None:
    assert derive_status(run) == status


def shown(resume: dict[str, Any] | None = None, **changes: Any) -> BannerFacts:
    facts = replace(RESUME, **(resume or {}))
    made = BannerFacts(facts.session_state, ExecutorStatus.STOPPED, assess(facts, NOW))
    return replace(made, **changes)


UP = {"running": True, "known_dead": False}
LOST = {"type_supports_resume": False}
REJECTED = {"has_token": False, "token_rejected": True}
BANNERS: list[tuple[BannerFacts, str, str, str]] = [
    (shown({"session_state": S.COMPLETED}), "info", "This session is complete.", "new_session"),
    (shown({"task_archived": True}, task_end="archived"), "info", "This task is archived.", "unarchive"),
    (shown({"task_archived": True}, task_end="done"), "info", "This task is done.", "reopen"),
    (shown({"session_state": S.COMPLETED}, task_end="cancelled"), "info", "This task is cancelled.", "reopen"),
    (shown(recovering=True), "info", "is looking for this session", ""),
    (shown(error_code="unreachable", session_state=S.ERROR), "warning", "at work; nothing was stopped", ""),
    (shown(UP, pending_permissions=1), "warning", "asks for a permission", "answer"),
    (shown(UP, held_prompts=2), "warning", "whether the agent got 2 prompts", "review_prompts"),
    (shown({"workspace": WorkspaceState.GONE}), "error", "worktree of this session is gone", "new_session"),
    (shown({"session_state": S.FAILED, "give_up": True}), "error", "not tried again by itself", "try_again"),
    (shown({"context_mismatch": True}), "error", "You decide how to go on", "choose_conversation"),
    (shown(queued_for_capacity=True), "info", "Too many agents run", ""),
    (
        shown(next_restart_at=NOW, attempts=2, session_state=S.ERROR),
        "warning",
        "The next one is at 12:00:00 UTC (number 3)",
        "try_again",
    ),
    (
        shown(next_restart_at=NOW, attempts=2),
        "warning",
        "The agent ended unexpectedly. It is restarted at 12:00:00 UTC (restart 3)",
        "try_again",
    ),
    (shown(LOST), "error", "This agent doesn’t support resuming. Start a new session.", "new_session"),
    (shown({"has_token": False}), "error", "was never learned", "fresh_start"),
    (shown(REJECTED), "warning", "starts a new conversation, without", "choose_conversation"),
    (shown(REJECTED | {"history_allowed": True}), "warning", "is told what was said", "choose_conversation"),
    (shown(session_state=S.STARTING), "info", "The agent is starting.", ""),
    (shown(UP, continuing=True), "info", "has been asked to continue", ""),
    (shown(UP, interrupted_prompts=1), "warning", "A prompt was interrupted", "review_prompts"),
    (shown({"desired_state": DesiredState.STOPPED, "stopped_by_user": True}), "info", "was stopped", "resume"),
    (shown(session_state=S.ERROR, error_message="No such image."), "error", "No such image.", "try_again"),
    (shown(queued_prompts=3), "info", "3 prompts wait for the agent.", "resume"),
    (shown(UP, queued_prompts=1), "info", "A prompt waits for the agent.", ""),
    (shown(), "info", "The agent is not running.", "resume"),
    (shown({"ever_prompted": False}), "info", "The agent is not running.", "resume"),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "level", "text", "action"), BANNERS)
def test_the_banner_says_the_most_important_thing(facts: BannerFacts, level: str, text: str, action: str) -> None:
    said = banner(facts)
    assert said is not None
    assert text in said.text
    assert (said.level, said.action) == (level, action)


def test_a_session_at_work_has_no_banner() -> None:
    assert banner(shown(UP, session_state=S.RUNNING)) is None


@pytest.mark.parametrize(
    ("executor", "explanation"),
    [
        (ExecutorStatus.READY, "Create new session to continue messaging."),
        (ExecutorStatus.STOPPED, "This agent cannot resume previous sessions. Create a new session."),
    ],
)
def test_an_agent_without_resume_is_explained_by_its_workspace(executor: ExecutorStatus, explanation: str) -> None:
    said = banner(shown(LOST, executor_status=executor))
    assert said is not None
    assert said.explanation == explanation


def test_a_prompt_in_doubt_is_said_before_an_agent_that_is_lost() -> None:
    said = banner(shown(LOST, held_prompts=1))
    assert said is not None
    assert said.action == "review_prompts"
