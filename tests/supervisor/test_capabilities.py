"""What agents claim and do not do is remembered by type and version, and decides and explains what comes next."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from executors_app.agent_capabilities import (
    assess_capabilities,
    build_capability_report,
    capability_standing,
    explain_capability,
    load_known_capabilities,
    save_assessment,
)
from executors_app.models import AgentCapability, AgentProfile
from sessions_app.domain.resumability import Strategy
from sessions_app.models import Prompt, TaskSession
from sessions_app.services.assessment import assess_session
from sessions_app.services.status import session_status
from sessions_app.supervisor.outcomes import StartFailure, write_start_failure
from sessions_app.supervisor.start import agent_start
from sessions_app.supervisor.start import claims as planning
from tests.supervisor.journals import Journal, hear
from tests.supervisor.rows import MINE, change, execution_of, fresh, running_session

pytestmark = pytest.mark.django_db

TEXT = "write the parser"
LOADED = {"outcome": "loaded", "replayed": 2, "replayed_user_texts": [TEXT]}
UNIMPLEMENTED = {"load_session": {"how": "unimplemented", "said": "Method not found: session/load"}}


def told(version: str = "1.2", *, load: Any = True, resume: Any = False, **more: Any) -> dict[str, Any]:
    """What an agent of that version tells of itself."""
    claims = {"load_session": load, "resume_session": resume, "history": True}
    return {"agent": {"name": "scripted", "version": version}, "capabilities": claims, **more}


def at_rest(**fields: Any) -> TaskSession:
    """A session with one completed turn whose agent is gone."""
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text=TEXT, state="sending")
    hear(session, [*journal.turn_begins("p1"), journal.completes("p1"), journal.exits()])
    return change(session, **fields)


def starts(session: TaskSession, mode: str = "auto") -> tuple[planning.StartClaim, agent_start.AgentStartRequest]:
    intent = session.intents.create(kind="start", payload={"mode": mode})
    plan = planning.claim_start(session.id, intent.id, MINE.owner, lives=None)
    assert plan is not None
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    return plan, order


def answers(session: TaskSession, answer: dict[str, Any], mode: str = "auto") -> bool:
    """The agent answers a start."""
    plan, order = starts(session, mode)
    return agent_start.write_agent_started(
        plan,
        plan.lease,
        order,
        {"resume_token": order.token_before, **answer},
        agent_start.load_conversation_facts(plan.session_id),
    )


def fails(session: TaskSession, code: str, what: dict[str, Any], **more: Any) -> TaskSession:
    """The agent refuses a start after it has told of itself."""
    plan, _ = starts(session)
    write_start_failure(session.id, plan.intent_id, plan.lease, StartFailure(code, "It refused.", told=what, **more))
    return fresh(session)


def remembered(capability: str = "load_session", version: str = "1.2") -> AgentCapability:
    return AgentCapability.objects.get(agent_type="demo", agent_version=version, capability=capability)


def test_a_claim_is_remembered_until_it_is_tried() -> None:
    answers(at_rest(), {**told(), "outcome": "created"}, mode="fresh_start")
    row = remembered()
    assert (row.agent_name, row.claimed, capability_standing(row)) == ("scripted", True, "not tried")
    assert capability_standing(remembered("resume_session")) == "not supported"


def test_a_load_that_brought_the_conversation_back_is_remembered_as_kept() -> None:
    session = at_rest()
    assert answers(session, {**told(), **LOADED})
    row = remembered()
    assert (capability_standing(row), row.kept_proof) == ("observed", "replay")
    assert session_status(fresh(session))["capability_note"] == ""


@pytest.mark.parametrize(
    ("answer", "how"),
    [
        ({**told(), "outcome": "loaded", "replayed": 0}, "other_conversation"),
        ({**told(), "outcome": "loaded", "replayed": 1, "replayed_user_texts": ["paint"]}, "other_conversation"),
        ({**told(), "outcome": "created"}, "new_conversation"),
    ],
    ids=["without history", "another history", "a new conversation"],
)
def test_an_agent_that_lied_about_its_load_is_remembered(answer: dict[str, Any], how: str) -> None:
    session = at_rest()
    assert not answers(session, answer)
    row = remembered()
    assert (capability_standing(row), row.broken_how) == ("failed", how)
    assert row.broken_said
    assert session_status(fresh(session))["capability_note"] == explain_capability(row)
    assert session.receipts.get().evidence["capability_note"] == explain_capability(row)


def test_an_error_over_a_load_is_told_and_the_load_is_tried_again() -> None:
    unkept = {"load_session": {"how": "error", "said": "the database is locked"}}
    session = fails(at_rest(), "handshake_failed", told(unkept=unkept))
    assert (capability_standing(remembered()), execution_of(session).supports_session_resume) == ("failed", True)
    assert assess_session(session).cause.strategy is Strategy.NATIVE
    day = timezone.now()
    assert session_status(session)["capability_note"] == (
        "Demo agent 1.2 claims to support session/load, but it failed on "
        f"{day.day} {day:%b %Y}: it answered with an error."
    )


@pytest.mark.parametrize(("history", "row", "strategy"), [(True, 9, Strategy.HISTORY), (False, 10, Strategy.FRESH)])
def test_where_there_is_nothing_behind_the_claim_the_next_prompt_is_the_consent(
    history: bool, row: int, strategy: Strategy
) -> None:
    session = at_rest()
    change(session.agent_profile, history_context_injection=history)
    session = fails(session, "resume_unsupported", told(unkept=UNIMPLEMENTED), permanent=True)
    execution, verdict = execution_of(session), assess_session(session)
    assert (session.state, session.error_code, session.next_restart_at) == (
        *("WAITING_FOR_INPUT", "resume_unsupported"),
        None,
    )
    assert (execution.resume_token, execution.rejected_resume_token) == ("", "conversation-1")
    assert execution.supports_session_resume is False
    assert (verdict.row, verdict.strategy, verdict.needs_resume) == (row, strategy, False)


def test_what_one_session_has_learned_spares_the_next_one_the_try() -> None:
    fails(at_rest(), "resume_unsupported", told(unkept=UNIMPLEMENTED), permanent=True)
    other = at_rest()
    answers(other, {**told(), "outcome": "created"}, mode="fresh_start")
    assert execution_of(other).supports_session_resume is False
    assert "it does not support the request" in execution_of(other).capability_note


def test_one_way_that_is_kept_is_enough() -> None:
    session = at_rest()
    answers(session, {**told(resume=True, unkept=UNIMPLEMENTED), "outcome": "resumed"})
    assert execution_of(session).supports_session_resume is True
    assert (capability_standing(remembered()), capability_standing(remembered("resume_session"))) == (
        "failed",
        "unproven",
    )


def test_a_newer_version_is_given_a_fresh_chance() -> None:
    old = fails(at_rest(), "resume_unsupported", told("1.2", unkept=UNIMPLEMENTED), permanent=True)
    assert execution_of(old).supports_session_resume is False

    answers(at_rest(), {**told("1.3"), **LOADED})
    assert execution_of(old).supports_session_resume is None
    assert execution_of(old).capability_note == ""
    assert (capability_standing(remembered(version="1.2")), capability_standing(remembered(version="1.3"))) == (
        "failed",
        "observed",
    )

    answers(old, {**told("1.3"), **LOADED}, mode="resume")
    assert session_status(fresh(old))["supports_session_resume"]


def test_a_version_that_is_known_opens_nothing_again() -> None:
    answers(at_rest(), {**told("1.3"), **LOADED})
    old = fails(at_rest(), "resume_unsupported", told("1.2", unkept=UNIMPLEMENTED), permanent=True)
    answers(at_rest(), {**told("1.3"), **LOADED})
    assert execution_of(old).supports_session_resume is False


def test_a_new_version_of_another_command_says_nothing_of_this_one() -> None:
    old = fails(at_rest(), "resume_unsupported", told("1.2", unkept=UNIMPLEMENTED), permanent=True)
    another = AgentProfile.objects.create(name="Another", agent_type="demo", command=["another-agent"])
    answers(at_rest(agent_profile=another), {**told("1.3"), **LOADED})
    assert execution_of(old).supports_session_resume is False


def test_whoever_keeps_it_later_is_believed_again() -> None:
    session = at_rest()
    assert not answers(session, {**told(), "outcome": "loaded", "replayed": 0})
    answers(at_rest(), {**told(), **LOADED})
    assert capability_standing(remembered()) == "observed"


def test_the_same_news_is_written_once_an_hour() -> None:
    answers(at_rest(), {**told(), **LOADED})
    first = remembered().last_seen_at
    answers(at_rest(), {**told(), **LOADED})
    assert remembered().last_seen_at == first
    AgentCapability.objects.update(last_seen_at=first - timedelta(hours=2))
    answers(at_rest(), {**told(), **LOADED})
    assert remembered().last_seen_at > first


def test_a_start_asks_the_memory_once(django_assert_num_queries: Any) -> None:
    what = build_capability_report(
        "demo", {**told(resume=True, unkept=UNIMPLEMENTED)}, kept={"resume_session": "pending"}
    )
    with django_assert_num_queries(1):
        judgement = assess_capabilities(what, load_known_capabilities(what), timezone.now())
    with django_assert_num_queries(2):  # one a capability
        save_assessment(what, judgement)
    with django_assert_num_queries(1):
        save_assessment(what, assess_capabilities(what, load_known_capabilities(what), timezone.now()))


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"agent": 5, "capabilities": ["load_session"], "unkept": "all"},
        {
            "agent": {"name": ["x"], "version": 3},
            "capabilities": {"load_session": "yes"},
            "unkept": {"load_session": 1},
        },
        {"agent": {"name": "a" * 999, "version": "\0" * 5}, "capabilities": {"load_session": True, "x": True}},
        {**told(), "unkept": {"load_session": {"how": "by magic", "said": ["?"]}, "x": {}}},
    ],
)
def test_an_agent_that_tells_nonsense_spoils_nothing(answer: dict[str, Any]) -> None:
    assert answers(at_rest(), {**answer, **LOADED})
    assert AgentCapability.objects.exclude(capability__in=["load_session", "resume_session"]).count() == 0


def test_the_conversations_id_is_not_kept_with_the_agents_words() -> None:
    unkept = {"load_session": {"how": "error", "said": "cannot open conversation-1: locked"}}
    fails(at_rest(), "handshake_failed", told(unkept=unkept))
    assert remembered().broken_said == "cannot open …: locked"


def test_a_load_that_a_user_accepted_all_the_same_is_not_taken_for_kept() -> None:
    session = at_rest()
    lie = {**told(), "outcome": "loaded", "replayed": 1, "replayed_user_texts": ["paint"]}
    assert not answers(session, lie)
    assert answers(session, lie, mode="accept_mismatch")
    assert capability_standing(remembered()) == "failed"
