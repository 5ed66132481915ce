"""Every row of the resume table, the modes, and the order of precedence."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from executors_app.wire.executions import WorkspaceState
from scripts.documents.examples import NOW, RESUME, RESUME_EXAMPLES
from sessions_app.kernel.rules.states import DesiredState, SessionState
from sessions_app.recovery.rules.resumability import (
    DAMAGED_ASSESSMENT,
    Assessment,
    Mode,
    ResumeFacts,
    Row,
    assess,
    assess_mode,
)

STOPPED: dict[str, Any] = {"desired_state": DesiredState.STOPPED, "stopped_by_user": True}
RUNNING: dict[str, Any] = {"running": True, "known_dead": False}
SEEN: dict[str, Any] = {"known_dead": False, "last_seen_at": NOW - timedelta(seconds=29)}
GAVE_UP: dict[str, Any] = {"session_state": SessionState.FAILED}
REJECTED: dict[str, Any] = {"has_token": False, "token_rejected": True}
NO_TOKEN: dict[str, Any] = {"has_token": False}
NOT_NATIVE: dict[str, Any] = {"type_supports_resume": False}
GONE: dict[str, Any] = {"workspace": WorkspaceState.GONE}
HISTORY: dict[str, Any] = {"history_allowed": True}
MISMATCH: dict[str, Any] = {"context_mismatch": True}
UNPROMPTED: dict[str, Any] = {"ever_prompted": False}


def assessed(*changes: dict[str, Any]) -> Assessment:
    facts = RESUME
    for change in changes:
        facts = replace(facts, **change)
    return assess(facts, NOW)


# row, changes, is_resumable, needs_resume, resume_reason, strategy
TABLE = [
    (1, [RUNNING], True, False, "running", None),
    (1, [RUNNING, NOT_NATIVE], False, False, "running", None),
    (1, [RUNNING, GONE], False, False, "running", None),
    (1, [RUNNING, STOPPED], True, False, "running", None),
    (2, [SEEN], True, False, "recently_seen", None),
    (2, [SEEN, NO_TOKEN], False, False, "recently_seen", None),
    (8, [SEEN, {"known_dead": True}], True, True, "agent_not_running", "native"),
    (8, [SEEN, {"last_seen_at": NOW - timedelta(seconds=30)}], True, True, "agent_not_running", "native"),
    (8, [SEEN, STOPPED], True, False, "stopped_by_user", "native"),
    (3, [{"session_state": SessionState.COMPLETED}], False, False, "terminal_state", None),
    (3, [{"session_state": SessionState.CANCELLED}, GONE], False, False, "terminal_state", None),
    (3, [{"task_archived": True}, GAVE_UP], False, False, "terminal_state", None),
    (4, [GAVE_UP], True, False, "gave_up", "native"),
    (4, [GAVE_UP, STOPPED], True, False, "gave_up", "native"),
    (4, [GAVE_UP, UNPROMPTED], True, False, "gave_up", "fresh"),
    (4, [GAVE_UP, HISTORY, NO_TOKEN], True, False, "gave_up", "history"),
    (5, [GONE], False, False, "worktree_missing", None),
    (5, [GONE, MISMATCH, UNPROMPTED], False, False, "worktree_missing", None),
    (5, [GONE, STOPPED], False, False, "worktree_missing", None),
    (8, [{"workspace": WorkspaceState.REBUILDABLE}], True, True, "agent_not_running", "native"),
    (6, [MISMATCH], False, False, "context_mismatch", None),
    (6, [MISMATCH, UNPROMPTED], False, False, "context_mismatch", None),
    (7, [UNPROMPTED], True, True, "agent_not_running_fresh_start", "fresh"),
    (7, [UNPROMPTED, NOT_NATIVE, NO_TOKEN], True, True, "agent_not_running_fresh_start", "fresh"),
    (7, [UNPROMPTED, STOPPED], True, False, "stopped_by_user", "fresh"),
    (8, [], True, True, "agent_not_running", "native"),
    (8, [HISTORY], True, True, "agent_not_running", "native"),
    (8, [{"token_rejected": True}], True, True, "agent_not_running", "native"),
    (8, [{"session_state": SessionState.ERROR}], True, True, "agent_not_running", "native"),
    (8, [{"profile_supports_resume": True, "probed_supports_resume": True}], True, True, "agent_not_running", "native"),
    (9, [NO_TOKEN, HISTORY], True, True, "agent_not_running_fresh_start", "history"),
    (9, [NOT_NATIVE, HISTORY], True, True, "agent_not_running_fresh_start", "history"),
    (9, [REJECTED, HISTORY], True, False, "agent_not_running_fresh_start", "history"),
    (9, [NO_TOKEN, HISTORY, STOPPED], True, False, "stopped_by_user", "history"),
    (10, [REJECTED], True, False, "agent_not_running_fresh_start", "fresh"),
    (11, [NO_TOKEN], False, False, "missing_resume_token", None),
    (11, [NO_TOKEN, HISTORY, {"has_row": False}], False, False, "missing_resume_token", None),
    (11, [NO_TOKEN, STOPPED], False, False, "stopped_by_user", None),
    (12, [NOT_NATIVE], False, False, "not_resumable", None),
    (12, [{"profile_supports_resume": False}], False, False, "not_resumable", None),
    (12, [{"probed_supports_resume": False}], False, False, "not_resumable", None),
    (12, [NOT_NATIVE, {"profile_supports_resume": True}], False, False, "not_resumable", None),
]


@pytest.mark.parametrize(
    ("row", "changes", "resumable", "needed", "reason", "strategy"),
    TABLE,
    ids=[f"row{line[0]}-{line[4]}-{number}" for number, line in enumerate(TABLE)],
)
def test_session_is_assessed_by_its_row(
    row: int, changes: list[dict[str, Any]], resumable: bool, needed: bool, reason: str, strategy: str | None
) -> None:
    assessment = assessed(*changes)
    assert (assessment.row, assessment.is_resumable, assessment.needs_resume) == (row, resumable, needed)
    assert (assessment.resume_reason, assessment.strategy) == (reason, strategy)
    assert assessment.is_at_rest is (row not in (Row.RUNNING, Row.RECENTLY_SEEN))


def test_session_with_damaged_rows_may_have_an_agent_and_is_not_at_rest() -> None:
    assert not DAMAGED_ASSESSMENT.is_at_rest


@pytest.mark.parametrize("fact", ["type_supports_resume", "profile_supports_resume", "probed_supports_resume"])
def test_one_fact_against_native_resume_is_enough(fact: str) -> None:
    assert assessed().supports_session_resume
    assert not assessed({fact: False}).supports_session_resume


@pytest.mark.parametrize("facts", [facts for _, _, facts in RESUME_EXAMPLES])
def test_only_resumable_sessions_need_a_resume_and_have_a_strategy(facts: ResumeFacts) -> None:
    assessment = assess(facts, NOW)
    assert assessment.is_resumable or not assessment.needs_resume
    assert assessment.cause.is_resumable is (assessment.cause.strategy is not None)


@pytest.mark.parametrize("over", [RUNNING, SEEN])
def test_session_without_its_agent_follows_the_rows_below(over: dict[str, Any]) -> None:
    facts = replace(RESUME, **over)
    assert (
        assess(replace(facts, running=False, known_dead=True), NOW)
        == assess(facts, NOW).without_live_agent
        == assessed()
    )


def test_stop_without_a_user_does_not_override_the_table() -> None:
    assessment = assessed({"desired_state": DesiredState.STOPPED})
    assert (assessment.resume_reason, assessment.needs_resume) == ("agent_not_running", True)


def test_session_wanted_again_does_not_count_as_stopped() -> None:
    assert assessed({"stopped_by_user": True}).needs_resume


# changes, then the answer to: auto, resume, fresh_start, accept_mismatch, workspace_only (None: without an agent)
MODES: list[tuple[list[dict[str, Any]], list[str | None]]] = [
    ([RUNNING], ["already_running"] * 5),
    ([RUNNING, STOPPED], ["already_running"] * 5),
    ([SEEN], ["native", "native", "fresh", "native", None]),
    ([{"task_archived": True}], ["terminal_state"] * 5),
    ([SEEN, {"task_archived": True}], ["terminal_state"] * 5),
    ([GONE], ["worktree_missing"] * 5),
    ([GAVE_UP, GONE], ["worktree_missing"] * 5),
    ([GAVE_UP], ["native", "native", "fresh", "native", None]),
    ([STOPPED], ["native", "native", "fresh", "native", None]),
    ([STOPPED, NO_TOKEN], ["missing_resume_token", "missing_resume_token", "fresh", "missing_resume_token", None]),
    ([MISMATCH], ["not_resumable", "not_resumable", "fresh", "native", None]),
    ([UNPROMPTED], ["fresh", "fresh", "fresh", "fresh", None]),
    ([NO_TOKEN, HISTORY], ["history", "history", "fresh", "history", None]),
    ([REJECTED, HISTORY], ["history", "native", "fresh", "history", None]),
    ([REJECTED], ["fresh", "native", "fresh", "fresh", None]),
    ([REJECTED, STOPPED], ["fresh", "native", "fresh", "fresh", None]),
    ([REJECTED, {"token_strange": True}], ["fresh", "strange_token", "fresh", "fresh", None]),
    ([REJECTED, {"token_strange": True}, HISTORY], ["history", "strange_token", "fresh", "history", None]),
    ([NOT_NATIVE], ["not_resumable", "not_resumable", "fresh", "not_resumable", None]),
]


@pytest.mark.parametrize(
    ("changes", "mode", "answer"),
    [(changes, mode, answer) for changes, answers in MODES for mode, answer in zip(Mode, answers, strict=True)],
)
def test_mode_gives_a_strategy_or_an_error_code(changes: list[dict[str, Any]], mode: Mode, answer: str | None) -> None:
    verdict = assess_mode(assessed(*changes), mode)
    assert (verdict.strategy or verdict.refusal or None) == answer
    assert verdict.allowed is (answer in (None, "native", "history", "fresh"))


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="hopefully"):
        assess_mode(assessed(), "hopefully")
