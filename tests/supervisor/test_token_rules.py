"""The agent's conversation id: who may write it, and to whom it is given (design 8); each rule by itself."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.agentctl.protocol import JournalKind
from executors_app.models import AgentProfile, ExecutorRunning
from sessions_app.domain.verification import REJECTED_TOKEN_OF, TOKEN_OF, TokenBinding, mismatched_fields
from sessions_app.models import Intent, Lease, LeaseLost, TaskSession
from sessions_app.pages.session_summary import banner_buttons, session_situation
from sessions_app.services.assessment import assess_session, assess_start
from sessions_app.services.status import session_status
from sessions_app.supervisor import leases
from sessions_app.supervisor.outcomes import StartFailure, write_start_failure
from sessions_app.supervisor.start import agent_start, claims
from sessions_app.supervisor.start.claims import StartClaim
from tests.supervisor.journals import Journal, hear
from tests.supervisor.rows import MINE, change, execution_of, fresh, running_session
from tests.supervisor.test_starts import at_rest

pytestmark = pytest.mark.django_db

HERE = "/srv/worktree"


def identified(session: TaskSession, token: str, lease: Lease = MINE) -> str:
    """The agent tells of another conversation; the id that is kept then."""
    journal = Journal(f"epoch of {token}")
    hear(session, [journal.line(JournalKind.SESSION_IDENTIFIED)], token={"resume_token": token}, lease=lease)
    return str(execution_of(session).resume_token)


def begun(session: TaskSession, mode: str = "auto") -> StartClaim:
    intent = Intent.objects.create(session=session, kind="start", payload={"mode": mode})
    plan = claims.claim_start(session.id, intent.id, MINE.owner, lives=None)
    assert plan is not None
    return plan


def started(session: TaskSession, mode: str = "auto", **answer: Any) -> TaskSession:
    plan = begun(session, mode)
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    told = {"outcome": "created", "resume_token": "conversation-2", **answer}
    agent_start.write_agent_started(plan, plan.lease, order, told, agent_start.load_conversation_facts(plan.session_id))
    return fresh(session)


def owned() -> TaskSession:
    """A session at rest whose conversation is known to be its profile's, in its directory."""
    session = at_rest()
    change(execution_of(session), workspace_path=HERE)
    profile = session.agent_profile
    kept = TokenBinding(str(profile.id), profile.agent_type, HERE).to_json()
    return change(session, metadata={**session.metadata, TOKEN_OF: kept})


# -- compare and set


def test_a_word_of_an_execution_that_the_session_has_left_writes_nothing() -> None:
    session = running_session()
    old = execution_of(session)
    lease = leases.acquire_lease(old.id, MINE.owner)
    assert lease is not None
    assert identified(session, "conversation-1b", lease) == "conversation-1b"
    row = {field.attname: getattr(old, field.attname) for field in ExecutorRunning._meta.concrete_fields}
    moved = ExecutorRunning.objects.create(**{**row, "id": None, "resume_token": "conversation-1b"})
    change(session, agent_execution_id=moved.id)
    journal = Journal()
    with pytest.raises(LeaseLost):
        hear(session, [journal.line(JournalKind.SESSION_IDENTIFIED)], token={"resume_token": "stolen"}, lease=lease)
    assert set(ExecutorRunning.objects.values_list("resume_token", flat=True)) == {"conversation-1b"}


@pytest.mark.parametrize("strategy", ["fresh", "history"])
def test_a_conversation_that_is_being_opened_replaces_none_before_its_start_has_worked(strategy: str) -> None:
    session = at_rest()
    Intent.objects.create(session=session, kind="start", payload={"mode": "auto", "strategy": strategy})
    assert identified(session, "unproven") == "conversation-1"


def test_a_conversation_whose_start_has_failed_never_replaces_another() -> None:
    session = at_rest()
    plan = begun(session, "fresh_start")
    write_start_failure(session.id, plan.intent_id, plan.lease, StartFailure("agent_exited", "It ended."))
    assert identified(session, "of the failed start") == "conversation-1"


def test_nor_does_it_take_the_place_of_one_that_was_set_aside() -> None:
    session = at_rest()
    change(execution_of(session), resume_token="", rejected_resume_token="conversation-1")
    assert identified(session, "of the failed start") == ""
    assert execution_of(session).rejected_resume_token == "conversation-1"


def test_a_running_agent_may_go_on_under_another_name() -> None:
    assert identified(running_session(), "conversation-1b") == "conversation-1b"


def test_the_first_conversation_is_kept_as_soon_as_it_has_a_name() -> None:
    session = running_session(execution={"resume_token": "", "workspace_path": HERE}, launch_id="")
    assert identified(session, "the first") == "the first"
    assert fresh(session).metadata[TOKEN_OF]["directory"] == HERE


# -- kept, set aside, tried again


KEEPING = ["agentctl_unreachable", "agent_exited", "start_timeout", "handshake_failed", "spawn_failed", "launch_failed"]


@pytest.mark.parametrize("code", KEEPING)
def test_a_failure_that_is_not_the_conversations_keeps_the_token(code: str) -> None:
    session = owned()
    plan = begun(session)
    failure = StartFailure(code, "It failed.", executor_failed=code == "launch_failed")
    write_start_failure(session.id, plan.intent_id, plan.lease, failure)
    row = execution_of(session)
    assert (row.resume_token, row.rejected_resume_token) == ("conversation-1", "")
    assert TOKEN_OF in fresh(session).metadata


def test_a_token_that_is_set_aside_takes_its_belonging_with_it() -> None:
    session = owned()
    plan = begun(session)
    write_start_failure(
        session.id, plan.intent_id, plan.lease, StartFailure("token_rejected", "Gone.", token_valid=False)
    )
    row = execution_of(session)
    assert (row.resume_token, row.rejected_resume_token) == ("", "conversation-1")
    assert fresh(session).metadata[REJECTED_TOKEN_OF]["directory"] == HERE


def test_what_was_set_aside_and_works_again_is_the_token_and_no_longer_aside() -> None:
    session = owned()
    change(execution_of(session), resume_token="", rejected_resume_token="conversation-1")
    started(
        session, "resume", outcome="loaded", resume_token="conversation-1", replayed_user_texts=["write the parser"]
    )
    row = execution_of(session)
    assert (row.resume_token, row.rejected_resume_token) == ("conversation-1", "")


def test_a_fresh_start_keeps_the_old_token_with_its_belonging() -> None:
    session = started(owned(), "fresh_start")
    row = execution_of(session)
    assert (row.resume_token, row.rejected_resume_token) == ("conversation-2", "conversation-1")
    assert session.metadata[REJECTED_TOKEN_OF] == session.metadata[TOKEN_OF]


# -- given to nobody else


def another_profile(session: TaskSession) -> None:
    change(session, agent_profile=AgentProfile.objects.create(name="Another", agent_type="demo"))


def another_type(session: TaskSession) -> None:
    change(session.agent_profile, agent_type="codex")


def another_directory(session: TaskSession) -> None:
    change(execution_of(session), workspace_path="/srv/elsewhere")


ELSEWHERE = [another_profile, another_type, another_directory]


@pytest.mark.parametrize("moved", ELSEWHERE)
def test_a_token_is_refused_to_another_profile_type_or_directory_and_kept(moved: Any) -> None:
    session = owned()
    moved(session)
    session = fresh(session)
    assessment = assess_session(session)
    assert (assessment.resume_reason, assessment.needs_resume) == ("agent_not_running_fresh_start", False)
    assert assess_start(session, "resume").refusal == "strange_token"
    status = {**session_status(session), "recovering": False}
    said = session_situation(session, status, assessment)
    assert said is not None
    assert "another agent profile, agent type or directory" in said.text
    assert [button.text for button in banner_buttons(said, assessment)] == ["Start fresh"]
    plan = begun(session)
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    assert (order.strategy, order.body["resume_token"]) == ("fresh", None)
    assert execution_of(session).resume_token == "conversation-1"


@pytest.mark.parametrize("moved", ELSEWHERE)
def test_nor_is_it_given_there_once_it_was_set_aside(moved: Any) -> None:
    session = owned()
    change(execution_of(session), resume_token="", rejected_resume_token="conversation-1")
    change(session, metadata={REJECTED_TOKEN_OF: session.metadata[TOKEN_OF]})
    assert assess_start(fresh(session), "resume").strategy == "native"
    moved(session)
    assert assess_start(fresh(session), "resume").refusal == "strange_token"


def test_what_is_put_back_gets_its_conversation_back() -> None:
    session = owned()
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
def test_what_nobody_knows_is_no_reason_to_refuse(kept: Any, names: tuple[str, ...]) -> None:
    assert mismatched_fields(kept, TokenBinding("p", "t", "/d")) == names
