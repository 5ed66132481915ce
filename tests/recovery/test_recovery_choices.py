"""The ways to continue are the same, whether an agent denies a capability or claims it and fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from executors_app.wire.executions import WorkspaceState
from scripts.documents.examples import NOW, RESUME
from sessions_app.kernel.rules.states import SessionState
from sessions_app.recovery.rules.recovery_choices import recovery_choices
from sessions_app.recovery.rules.resumability import assess

WITHOUT_CONVERSATION = ["Start fresh in this workspace", "New session in this worktree", "Create new session"]

CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "denies every means": ({"type_supports_resume": False}, []),
    "profile forbids it": ({"profile_supports_resume": False}, []),
    "running agent denied it": ({"probed_supports_resume": False}, []),
    "claims it and fails": ({}, ["Try again"]),
    "given up": ({"session_state": SessionState.FAILED}, ["Try again"]),
    "given up, but no means": ({"session_state": SessionState.FAILED, "type_supports_resume": False}, []),
    "never reported an id": ({"has_token": False}, []),
    "id rejected": ({"has_token": False, "token_rejected": True}, ["Try the old conversation again"]),
    "id of another agent": ({"has_token": False, "token_rejected": True, "token_strange": True}, []),
    "another conversation": ({"context_mismatch": True}, ["Accept the loaded conversation"]),
}


@pytest.mark.parametrize("case", CASES)
def test_only_what_may_restore_the_conversation_differs(case: str) -> None:
    changes, first = CASES[case]
    choices = recovery_choices(assess(replace(RESUME, **changes), NOW), shares_worktree=True)
    assert [each.text for each in choices] == [*first, *WITHOUT_CONVERSATION]


def test_lost_worktree_is_looked_for_again_or_left_for_a_new_session() -> None:
    lost = assess(replace(RESUME, workspace=WorkspaceState.GONE), NOW)
    assert [each.text for each in recovery_choices(lost, shares_worktree=True)] == ["Try again", "Create new session"]


def test_running_agent_is_not_started_by_a_choice() -> None:
    running = assess(replace(RESUME, running=True), NOW)
    assert all(each.mode is None for each in recovery_choices(running, shares_worktree=True))
