"""Archived, done and user-stopped sessions are never started, for every combination of values in their rows."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.kernel.rules.states import SessionState
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.models import Intent, Prompt, TaskSession, Turn
from sessions_app.prompts import services as prompts
from sessions_app.recovery.sweep.sweep_pass import SweepScope
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.status import load_status
from sessions_app.sessions.views.session_page import wants_start_on_open
from sessions_app.starts import claims
from tests.supervisor.recording_runtime import RecordingRuntime, sweep_once
from tests.supervisor.rows import MINE, make_task, make_user, running_session

pytestmark = pytest.mark.django_db(transaction=True)

UNWANTED: Final[Mapping[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "archived": ({}, {"archived_at": timezone.now()}),
    "done": ({}, {"state": "DONE"}),
    "cancelled": ({}, {"state": "CANCELLED"}),
    "stopped by a user": ({"desired_state": "stopped", "stopped_by_user": True}, {}),
    "closed": ({"desired_state": "stopped", "stopped_by_user": True, "state": "COMPLETED"}, {}),
    "ended, and by damage still wanted": ({"state": "CANCELLED"}, {}),
}
"""Fields of session and task, by what happened to the session."""
EXECUTIONS: Final = (
    {"status": "ready"},
    {"status": "starting"},
    {"status": "stopped", "status_reason": "stopped"},
    {"status": "stopped", "status_reason": "idle"},
    {"status": "error", "error_code": "unreachable"},
)
NEVER_RUN_AGAIN: Final = frozenset({"archived", "done", "cancelled", "closed", "ended, and by damage still wanted"})


@dataclass(frozen=True)
class UnwantedSession:
    """An unwanted session, and how it became unwanted."""

    session: TaskSession
    how: str


def unwanted_sessions(runtime: RecordingRuntime) -> Iterator[UnwantedSession]:
    """Yield unwanted sessions of each kind with every state, execution, work state and prompt state."""
    base = running_session(runtime=runtime.name, task=make_task())
    pattern = ExecutorRunning.objects.get(session=base)
    tasks = {how: make_task(title=how) for how in UNWANTED}
    for how, (_, values) in UNWANTED.items():
        type(tasks[how]).objects.filter(id=tasks[how].id).update(**values)
    kinds = itertools.product(UNWANTED, SessionState, EXECUTIONS, ((False, "idle"), (True, "working")))
    rows: list[tuple[str, TaskSession, ExecutorRunning, bool]] = []
    for how, state, execution, (requested, work) in kinds:
        if UNWANTED[how][0].get("state", state) != state:
            continue
        session = TaskSession(
            task=tasks[how],
            agent_profile=base.agent_profile,
            executor=base.executor,
            owner=base.owner,
            work_state=work,
            launch_id="launch" if execution["status"] == "ready" else "",
            **{"state": state, "policy": "auto", "start_rank": 1 if requested else None, **UNWANTED[how][0]},
        )
        there = ExecutorRunning(
            session=session,
            task=tasks[how],
            executor=base.executor,
            runtime=runtime.name,
            resume_token="conversation",
            auth_token="token",
            agentctl_url=pattern.agentctl_url,
            **execution,
        )
        session.agent_execution_id = there.id
        rows.append((how, session, there, requested))
    TaskSession.objects.bulk_create(session for _, session, _, _ in rows)
    ExecutorRunning.objects.bulk_create(there for _, _, there, _ in rows)
    Prompt.objects.bulk_create(
        Prompt(session=session, message_id="p1", text="go on") for _, session, _, requested in rows if requested
    )
    Turn.objects.bulk_create(
        Turn(session=session, message_id="p0", state="completed", started_at=timezone.now())
        for _, session, _, _ in rows
    )
    base.delete()
    for how, session, _, _ in rows:
        yield UnwantedSession(session, how)


def open_start_intents() -> list[Any]:
    """Return the open start intents."""
    return list(Intent.objects.filter(kind="start", done_at=None).values_list("session_id", flat=True))


def test_no_sweep_or_admission_starts_an_unwanted_session(runtime: RecordingRuntime) -> None:
    made = list(unwanted_sessions(runtime))
    assert len(made) == 340
    for scope in (
        SweepScope("boot"),
        SweepScope("reconcile"),
        SweepScope("reconcile", admitted=True),
        SweepScope("command"),
    ):
        sweep_once(scope)
        assert open_start_intents() == []


def test_page_does_not_start_an_unwanted_session(runtime: RecordingRuntime) -> None:
    for one in unwanted_sessions(runtime):
        session = TaskSession.objects.select_related("task", "agent_profile", "executor").get(id=one.session.id)
        assert not wants_start_on_open(load_status(session)), (one.how, session.state)


def test_earlier_start_intent_of_an_unwanted_session_is_dropped(runtime: RecordingRuntime) -> None:
    made = list(unwanted_sessions(runtime))[::3]
    ExecutorRunning.objects.update(owner=MINE.owner, generation=1)
    for one in made:
        order = Intent.objects.create(session=one.session, kind="start", payload={"mode": "auto"})
        assert claims.claim_start(one.session.id, order.id, MINE.owner, running_launch_id=None) is None, one.how
    assert open_start_intents() == []


def test_prompts_and_resumes_do_not_start_a_finished_session(runtime: RecordingRuntime) -> None:
    for number, one in enumerate(unwanted_sessions(runtime)):
        if one.how in NEVER_RUN_AGAIN and number % 3 == 0:
            with pytest.raises(SessionsError):
                prompts.queue_prompt(one.session.id, f"new {number}", "go on", make_user())
            with contextlib.suppress(
                SessionsError
            ):  # while an agent still runs, a resume has nothing to do and raises nothing
                intents.request_resume(one.session.id, make_user())
    assert open_start_intents() == []
