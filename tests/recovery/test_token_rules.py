"""The agent's conversation id: who may write it, and who receives it."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.models import AgentProfile, ExecutorRunning
from executors_app.wire.protocol import JournalKind
from sessions_app.models import Intent, Lease, LeaseLost, TaskSession
from sessions_app.recovery.rules.verification import REJECTED_TOKEN_OF, TOKEN_OF, TokenBinding, mismatched_fields
from sessions_app.recovery.services.assessment import assess_session, assess_start
from sessions_app.sessions.views.session_summary import banner_buttons
from sessions_app.starts import agent_start, claims
from sessions_app.starts.claims import StartClaim
from sessions_app.starts.outcomes import StartFailure, write_start_failure
from sessions_app.supervisor import leases
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import MINE, change, execution_of, fresh, running_session, shown_situation
from tests.supervisor.start_claims import session_without_agent

pytestmark = pytest.mark.django_db

HERE = "/srv/worktree"


def ingest_token(session: TaskSession, token: str, lease: Lease = MINE) -> str:
    """Ingest another conversation id of the agent; return the id that is then stored."""
    journal = Journal(f"epoch of {token}")
    ingest(session, [journal.line(JournalKind.SESSION_IDENTIFIED)], token={"resume_token": token}, lease=lease)
    return str(execution_of(session).resume_token)


def claim_start_of(session: TaskSession, mode: str = "auto") -> StartClaim:
    intent = Intent.objects.create(session=session, kind="start", payload={"mode": mode})
    plan = claims.claim_start(session.id, intent.id, MINE.owner, running_launch_id=None)
    assert plan is not None
    return plan


def start_agent_of(session: TaskSession, mode: str = "auto", **answer: Any) -> TaskSession:
    plan = claim_start_of(session, mode)
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    values = {"outcome": "created", "resume_token": "conversation-2", **answer}
    agent_start.write_agent_started(
        plan, plan.lease, order, values, agent_start.load_conversation_facts(plan.session_id)
    )
    return fresh(session)


def bound_session() -> TaskSession:
    """Return a session at rest whose conversation is bound to its profile and directory."""
    session = session_without_agent()
    change(execution_of(session), workspace_path=HERE)
    profile = session.agent_profile
    kept = TokenBinding(str(profile.id), profile.agent_type, HERE).to_json()
    return change(session, metadata={**session.metadata, TOKEN_OF: kept})


# -- compare and set


def test_earlier_execution_of_a_session_cannot_write_its_token() -> None:
    session = running_session()
    old = execution_of(session)
    lease = leases.acquire_lease(old.id, MINE.owner)
    assert lease is not None
    assert ingest_token(session, "conversation-1b", lease) == "conversation-1b"
    row = {field.attname: getattr(old, field.attname) for field in ExecutorRunning._meta.concrete_fields}
    moved = ExecutorRunning.objects.create(**{**row, "id": None, "resume_token": "conversation-1b"})
    change(session, agent_execution_id=moved.id)
    journal = Journal()
    with pytest.raises(LeaseLost):
        ingest(session, [journal.line(JournalKind.SESSION_IDENTIFIED)], token={"resume_token": "stolen"}, lease=lease)
    assert set(ExecutorRunning.objects.values_list("resume_token", flat=True)) == {"conversation-1b"}


@pytest.mark.parametrize("strategy", ["fresh", "history"])
def test_conversation_of_an_unfinished_start_replaces_no_token(strategy: str) -> None:
    session = session_without_agent()
    Intent.objects.create(session=session, kind="start", payload={"mode": "auto", "strategy": strategy})
    assert ingest_token(session, "unproven") == "conversation-1"


def test_conversation_of_a_failed_start_replaces_no_token() -> None:
    session = session_without_agent()
    plan = claim_start_of(session, "fresh_start")
    write_start_failure(session.id, plan.intent_id, plan.lease, StartFailure("agent_exited", "It ended."))
    assert ingest_token(session, "of the failed start") == "conversation-1"


def test_conversation_of_a_failed_start_does_not_replace_a_rejected_token() -> None:
    session = session_without_agent()
    change(execution_of(session), resume_token="", rejected_resume_token="conversation-1")
    assert ingest_token(session, "of the failed start") == ""
    assert execution_of(session).rejected_resume_token == "conversation-1"


def test_running_agent_may_change_its_conversation_id() -> None:
    assert ingest_token(running_session(), "conversation-1b") == "conversation-1b"


def test_first_conversation_id_is_stored_immediately() -> None:
    session = running_session(execution={"resume_token": "", "workspace_path": HERE}, launch_id="")
    assert ingest_token(session, "the first") == "the first"
    assert fresh(session).metadata[TOKEN_OF]["directory"] == HERE


# -- kept, set aside, tried again


KEEPING = ["agentctl_unreachable", "agent_exited", "start_timeout", "handshake_failed", "spawn_failed", "launch_failed"]


@pytest.mark.parametrize("code", KEEPING)
def test_unrelated_start_failure_keeps_the_token(code: str) -> None:
    session = bound_session()
    plan = claim_start_of(session)
    failure = StartFailure(code, "It failed.", executor_failed=code == "launch_failed")
    write_start_failure(session.id, plan.intent_id, plan.lease, failure)
    row = execution_of(session)
    assert (row.resume_token, row.rejected_resume_token) == ("conversation-1", "")
    assert TOKEN_OF in fresh(session).metadata


def test_rejected_token_keeps_its_binding() -> None:
    session = bound_session()
    plan = claim_start_of(session)
    write_start_failure(
        session.id, plan.intent_id, plan.lease, StartFailure("token_rejected", "Gone.", token_valid=False)
    )
    row = execution_of(session)
    assert (row.resume_token, row.rejected_resume_token) == ("", "conversation-1")
    assert fresh(session).metadata[REJECTED_TOKEN_OF]["directory"] == HERE


def test_rejected_token_that_works_again_becomes_the_token() -> None:
    session = bound_session()
    change(execution_of(session), resume_token="", rejected_resume_token="conversation-1")
    start_agent_of(
        session, "resume", outcome="loaded", resume_token="conversation-1", replayed_user_texts=["write the parser"]
    )
    row = execution_of(session)
    assert (row.resume_token, row.rejected_resume_token) == ("conversation-1", "")


def test_fresh_start_sets_the_old_token_aside_with_its_binding() -> None:
    session = start_agent_of(bound_session(), "fresh_start")
    row = execution_of(session)
    assert (row.resume_token, row.rejected_resume_token) == ("conversation-2", "conversation-1")
    assert session.metadata[REJECTED_TOKEN_OF] == session.metadata[TOKEN_OF]


# -- not given to others


def another_profile(session: TaskSession) -> None:
    change(session, agent_profile=AgentProfile.objects.create(name="Another", agent_type="demo"))


def another_type(session: TaskSession) -> None:
    change(session.agent_profile, agent_type="codex")


def another_directory(session: TaskSession) -> None:
    change(execution_of(session), workspace_path="/srv/elsewhere")


ELSEWHERE = [another_profile, another_type, another_directory]


@pytest.mark.parametrize("moved", ELSEWHERE)
def test_token_is_not_given_to_another_profile_type_or_directory(moved: Any) -> None:
    session = bound_session()
    moved(session)
    session = fresh(session)
    assessment = assess_session(session)
    assert (assessment.resume_reason, assessment.needs_resume) == ("agent_not_running_fresh_start", False)
    assert assess_start(session, "resume").refusal == "strange_token"
    shown = shown_situation(session)
    assert "another agent profile, agent type or directory" in shown.text
    assert [button.text for button in banner_buttons(shown, assessment)] == [
        "Start fresh in this workspace",
        "Create new session",
    ]
    plan = claim_start_of(session)
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    assert (order.strategy, order.body["resume_token"]) == ("fresh", None)
    assert execution_of(session).resume_token == "conversation-1"


@pytest.mark.parametrize("moved", ELSEWHERE)
def test_rejected_token_is_not_given_to_another_profile_either(moved: Any) -> None:
    session = bound_session()
    change(execution_of(session), resume_token="", rejected_resume_token="conversation-1")
    change(session, metadata={REJECTED_TOKEN_OF: session.metadata[TOKEN_OF]})
    assert assess_start(fresh(session), "resume").strategy == "native"
    moved(session)
    assert assess_start(fresh(session), "resume").refusal == "strange_token"


def test_token_is_usable_again_after_the_directory_is_restored() -> None:
    session = bound_session()
    change(execution_of(session), workspace_path="/srv/elsewhere")
    change(execution_of(session), workspace_path=HERE)
    assert assess_start(fresh(session), "auto").strategy == "native"


@pytest.mark.parametrize(
    ("kept", "names"),
    [
        (None, ()),
        ("damaged", ()),
        ({}, ()),
        ({"agent_profile": "p", "agent_type": "t", "directory": "/d"}, ()),
        ({"agent_profile": "q", "agent_type": "t", "directory": "/d"}, ("agent_profile",)),
        ({"agent_profile": "p", "agent_type": "u", "directory": "/e"}, ("agent_type", "directory")),
    ],
)
def test_unknown_binding_fields_do_not_mismatch(kept: Any, names: tuple[str, ...]) -> None:
    assert mismatched_fields(kept, TokenBinding("p", "t", "/d")) == names
