"""A session whose agent cannot come back is reported; its workspace opens on request, and nothing stays queued."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.models import AgentProfile
from executors_app.wire.executions import Observation, Observed
from sessions_app.models import Prompt, TaskSession, session_transaction
from sessions_app.recovery.sweep.sweep_pass import SweepScope
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.status import session_status
from sessions_app.starts import agent_start, claims
from sessions_app.turns.interruptions import withdraw_continuation
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.recording_runtime import DEAD, RecordingRuntime, sweep_once
from tests.supervisor.rows import (
    MINE,
    NO_LEASE,
    change,
    execution_of,
    fresh,
    open_orders,
    prompt_states,
    running_session,
)

pytestmark = pytest.mark.django_db(transaction=True)
OPEN = Observation(
    Observed.ALIVE,
    report={
        "agent": {"state": "none", "active_turn": None, "launch_id": ""},
        "journal": {"last_seq": 0},
        "pending_permissions": [],
    },
)
POLICIES = ("auto", "working", "on_open", "manual")


def lost(policy: str = "auto", **fields: Any) -> TaskSession:
    """Return a session that has had a turn and has no resume token."""
    session, journal = running_session(runtime="recording", policy=policy, **fields), Journal()
    Prompt.objects.create(session=session, message_id="p0", text="begin", state="sending")
    ingest(session, [*journal.turn_begins("p0"), *journal.says("Done."), journal.completes("p0")])
    AgentProfile.objects.filter(id=session.agent_profile_id).update(supports_session_resume=False)
    change(execution_of(session), resume_token="", **NO_LEASE)
    return fresh(session)


@pytest.mark.parametrize("policy", ["on_open", "manual"])
def test_boot_sweep_respects_the_recovery_policy(runtime: RecordingRuntime, policy: str) -> None:
    session = lost(policy)
    runtime.sees[str(session.id)] = DEAD
    sweep_once(SweepScope("boot"))
    assert open_orders(session) == []
    status = session_status(fresh(session))
    assert (status["state"], status["error_code"]) == ("ERROR", "not_resumable")
    assert (status["executor_status"], status["requires_new_session"]) == ("stopped", True)


@pytest.mark.parametrize("policy", POLICIES)
def test_workspace_can_be_opened_under_every_policy(runtime: RecordingRuntime, policy: str) -> None:
    session = lost(policy)
    runtime.sees[str(session.id)] = DEAD
    sweep_once(SweepScope("boot"))
    intents.request_resume(session.id, None, "workspace_only")
    assert [(kind, text["mode"]) for kind, text in open_orders(session)] == [("start", "workspace_only")]


@pytest.mark.parametrize("policy", POLICIES)
def test_workspace_opened_by_its_user_is_no_error_in_later_sweeps(runtime: RecordingRuntime, policy: str) -> None:
    session = lost(policy, launch_id="")
    change(session, launch_id="", state="WAITING_FOR_INPUT", metadata={"workspace_only": True})
    runtime.sees[str(session.id)] = OPEN
    for _ in range(2):
        sweep_once(SweepScope("reconcile"))
    assert (fresh(session).state, fresh(session).error_code) == ("WAITING_FOR_INPUT", "")
    assert open_orders(session) == []


def test_opening_the_workspace_keeps_the_context_mismatch_error() -> None:
    session = running_session(launch_id="", state="ERROR", error_code="context_mismatch", context_mismatch=True)
    intents.request_resume(session.id, None, "workspace_only")
    order = session.intents.get(done_at=None).id
    plan = claims.claim_start(session.id, order, MINE.owner, running_launch_id=None)
    assert plan is not None
    assert agent_start.prepare_agent_start(plan, plan.lease, found=None) is None
    assert (fresh(session).state, fresh(session).error_code) == ("ERROR", "context_mismatch")


def in_a_turn(session: TaskSession) -> Journal:
    journal = Journal("epoch-2")
    change(session, state="RUNNING", work_state="working")
    Prompt.objects.create(session=session, message_id="p1", text="write it", state="sending")
    ingest(session, journal.turn_begins("p1"))
    return journal


def test_agent_that_cannot_resume_gets_no_continue_prompt() -> None:
    session = running_session()
    journal = in_a_turn(session)
    AgentProfile.objects.filter(id=session.agent_profile_id).update(supports_session_resume=False)
    ingest(session, [journal.exits("p1")])
    assert prompt_states(session) == {"p1": "interrupted"}


def test_continue_prompt_is_withdrawn_without_an_agent_to_take_it() -> None:
    session = running_session()
    journal = in_a_turn(session)
    ingest(session, [journal.exits("p1")])
    (name,) = set(prompt_states(session)) - {"p1"}
    assert prompt_states(session) == {"p1": "dismissed", name: "queued"}
    with session_transaction(session.id) as transaction:
        withdraw_continuation(transaction)
    assert prompt_states(session) == {"p1": "interrupted", name: "withdrawn"}
    assert Prompt.objects.get(message_id="p1").continued_by is None


def test_sweep_without_a_way_to_resume_withdraws_the_continue_prompt(runtime: RecordingRuntime) -> None:
    session = running_session(runtime="recording")
    journal = in_a_turn(session)
    ingest(session, [journal.exits("p1")])
    AgentProfile.objects.filter(id=session.agent_profile_id).update(supports_session_resume=False)
    change(execution_of(session), **NO_LEASE)
    runtime.sees[str(session.id)] = DEAD
    sweep_once(SweepScope("boot"))
    assert prompt_states(session)["p1"] == "interrupted"
    assert not Prompt.objects.filter(session=session, state="queued").exists()
