"""Why nothing is happening: one reason, with what would make something happen."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from rest_framework.test import APIClient

from executors_app.models import ExecutorRunning
from sessions_app.domain.idle_reason import IdleFacts, IdleReason, explain_idle
from sessions_app.models import TaskSession
from tests.api.world import World
from tests.attention.raising import raised

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
DOWN: dict[str, Any] = {"agent_running": False, "needs_resume": True}

# what holds, the reason, a word of its sentence, a word of the next step
TABLE: list[tuple[dict[str, Any], IdleReason | None, str, str]] = [
    ({}, IdleReason.YOUR_TURN, "nothing to do", "prompt"),
    ({"work_state": "working"}, None, "", ""),
    ({"session_state": "COMPLETED"}, None, "", ""),
    ({"task_over": True}, None, "", ""),
    ({"recovering": True}, IdleReason.RECOVERING, "just started", "Wait"),
    ({"recovering": True, "supervised": False}, IdleReason.NO_SUPERVISOR, "No supervisor", "staff"),
    ({"pending_permissions": 1, "work_state": "working"}, IdleReason.PERMISSION, "person", "Allow"),
    ({"waits_outside": True, "wait_until": AT}, IdleReason.OUTSIDE, "outside", "end the wait"),
    ({**DOWN, "session_state": "FAILED", "attempts": 5}, IdleReason.GAVE_UP, "5 starts", "Try again"),
    ({**DOWN, "desired_state": "stopped"}, IdleReason.STOPPED, "stopped", "Resume session"),
    ({**DOWN, "starting": True}, IdleReason.STARTING, "under way", "Wait"),
    ({**DOWN, "starting": True, "supervised": False}, IdleReason.NO_SUPERVISOR, "No supervisor", "staff"),
    ({**DOWN, "start_reason": "capacity", "starts_before": 1}, IdleReason.CAPACITY, "One is before", "stop a session"),
    ({**DOWN, "start_reason": "turn", "starts_before": 7}, IdleReason.TURN, "7 are before", "Wait"),
    ({**DOWN, "owner_left": True}, IdleReason.OWNER_LEFT, "left the team", "member"),
    (
        {**DOWN, "until": AT, "error_message": "boom", "session_state": "ERROR"},
        IdleReason.BACKING_OFF,
        "boom",
        "Try again",
    ),
    ({**DOWN, "error_code": "unreachable", "session_state": "ERROR"}, IdleReason.UNREACHABLE, "not answer", "machine"),
    ({**DOWN, "error_code": "unreachable", "starting": True}, IdleReason.UNREACHABLE, "not answer", "machine"),
    ({**DOWN, "session_state": "ERROR", "error_message": "boom"}, IdleReason.ERROR, "boom", "banner"),
    ({"held_prompts": 1}, IdleReason.IN_DOUBT, "not known", "Send it again"),
    ({**DOWN, "asleep": True}, IdleReason.ASLEEP, "sleeps", "wakes"),
    ({**DOWN, "policy": "manual", "policy_source": "team"}, IdleReason.POLICY, "the team’s choice", "Resume session"),
    ({**DOWN, "policy": "on_open", "policy_source": "session"}, IdleReason.POLICY, "own choice", "prompt"),
    ({**DOWN, "policy": "working", "policy_source": "deployment"}, IdleReason.POLICY, "deployment", "prompt"),
    ({**DOWN, "policy": "working", "work_state": "working"}, IdleReason.NEXT_LOOK, "next look", "Wait"),
    ({**DOWN, "policy": "manual", "queued_prompts": 1}, IdleReason.NEXT_LOOK, "next look", "Wait"),
    (DOWN, IdleReason.NEXT_LOOK, "next look", "Wait"),
    ({"queued_prompts": 1}, None, "", ""),
]


@pytest.mark.parametrize(("holds", "reason", "text", "step"), TABLE)
def test_the_reason_is_told_with_the_next_step(
    holds: dict[str, Any], reason: IdleReason | None, text: str, step: str
) -> None:
    at_rest = {
        "session_state": "WAITING_FOR_INPUT",
        "desired_state": "running",
        "work_state": "idle",
        "agent_running": True,
        "policy": "auto",
        "policy_source": "deployment",
    }
    found = explain_idle(IdleFacts(**{**at_rest, **holds}))
    if reason is None:
        assert found is None
        return
    assert found is not None and found.reason is reason
    assert text in found.text and step in found.next_step
    assert found.until == (AT if reason in (IdleReason.BACKING_OFF, IdleReason.OUTSIDE) else None)


def test_a_status_tells_it_of_its_session(world: World, api: APIClient) -> None:
    world.session.permissions.all().delete()
    assert api.get(world.url("status/")).json()["stillness"]["reason"] == "no_supervisor"  # its start is ordered
    world.session.intents.all().delete()
    ExecutorRunning.objects.update(status="stopped", status_reason="", resume_token="t")
    TaskSession.objects.update(state="WAITING_FOR_INPUT")
    api.patch(world.url(), {"policy": "manual"}, format="json")
    said = api.get(world.url("status/")).json()["stillness"]
    assert (said["reason"], "this session’s own choice" in said["text"]) == ("policy", True)
    raised(world.session, "owner_left")
    assert api.get(world.url("status/")).json()["stillness"]["reason"] == "owner_left"
