"""Capabilities that agents claim but lack are remembered by profile and version, and used in decisions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.utils import timezone

from executors_app.agent_capabilities import (
    assess_capabilities,
    build_capability_report,
    capability_standing,
    explain_capability,
    load_known_capabilities,
    save_assessment,
)
from executors_app.models import AgentCapability, AgentProfile, Executor
from sessions_app.models import Prompt, Task, TaskSession
from sessions_app.recovery.rules.resumability import Strategy
from sessions_app.recovery.services.assessment import assess_session
from sessions_app.sessions.services.status import session_status
from sessions_app.starts import agent_start
from sessions_app.starts import claims as planning
from sessions_app.starts.outcomes import StartFailure, capability_scope, write_start_failure
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import MINE, change, execution_of, fresh, running_session

pytestmark = pytest.mark.django_db

TEXT = "write the parser"
LOADED = {"outcome": "loaded", "replayed": 2, "replayed_user_texts": [TEXT]}
UNIMPLEMENTED = {"load_session": {"how": "unimplemented", "said": "Method not found: session/load"}}


def agent_description(version: str = "1.2", *, load: Any = True, resume: Any = False, **more: Any) -> dict[str, Any]:
    """Return what an agent of that version reports about itself."""
    claims = {"load_session": load, "resume_session": resume, "history": True}
    return {"agent": {"name": "scripted", "version": version}, "capabilities": claims, **more}


def idle_session(**fields: Any) -> TaskSession:
    """Return a session with one completed turn whose agent has exited."""
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text=TEXT, state="sending")
    ingest(session, [*journal.turn_begins("p1"), journal.completes("p1"), journal.exits()])
    return change(session, **fields)


def request_start(
    session: TaskSession, mode: str = "auto"
) -> tuple[planning.StartClaim, agent_start.AgentStartRequest]:
    intent = session.intents.create(kind="start", payload={"mode": mode})
    plan = planning.claim_start(session.id, intent.id, MINE.owner, running_launch_id=None)
    assert plan is not None
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    return plan, order


def answer_start(session: TaskSession, answer: dict[str, Any], mode: str = "auto") -> bool:
    """Claim a start and record the agent's answer to it."""
    plan, order = request_start(session, mode)
    return agent_start.write_agent_started(
        plan,
        plan.lease,
        order,
        {"resume_token": order.token_before, **answer},
        agent_start.load_conversation_facts(plan.session_id),
    )


def refuse_start(session: TaskSession, code: str, what: dict[str, Any], **more: Any) -> TaskSession:
    """Record that the agent refused a start after it had described itself."""
    plan, _ = request_start(session)
    write_start_failure(session.id, plan.intent_id, plan.lease, StartFailure(code, "It refused.", told=what, **more))
    return fresh(session)


def stored_capability(capability: str = "load_session", version: str = "1.2") -> AgentCapability:
    return AgentCapability.objects.get(agent_type="demo", agent_version=version, capability=capability)


def test_claimed_capability_is_untested_until_it_is_used() -> None:
    answer_start(idle_session(), {**agent_description(), "outcome": "created"}, mode="fresh_start")
    row = stored_capability()
    assert (row.agent_name, row.claimed, capability_standing(row)) == ("scripted", True, "not tried")
    assert capability_standing(stored_capability("resume_session")) == "not supported"


def test_load_that_restores_the_conversation_proves_the_capability() -> None:
    session = idle_session()
    assert answer_start(session, {**agent_description(), **LOADED})
    row = stored_capability()
    assert (capability_standing(row), row.kept_proof) == ("observed", "replay")
    assert session_status(fresh(session))["capability_note"] == ""


@pytest.mark.parametrize(
    ("answer", "how"),
    [
        ({**agent_description(), "outcome": "loaded", "replayed": 0}, "other_conversation"),
        (
            {**agent_description(), "outcome": "loaded", "replayed": 1, "replayed_user_texts": ["paint"]},
            "other_conversation",
        ),
        ({**agent_description(), "outcome": "created", "resume_token": "another"}, "new_conversation"),
    ],
    ids=["without history", "another history", "a new conversation"],
)
def test_false_load_claim_is_remembered_as_failed(answer: dict[str, Any], how: str) -> None:
    session = idle_session()
    assert not answer_start(session, answer)
    row = stored_capability()
    assert (capability_standing(row), row.broken_how) == ("failed", how)
    assert row.broken_said
    assert session_status(fresh(session))["capability_note"] == explain_capability(row)
    assert session.receipts.get().evidence["capability_note"] == explain_capability(row)


def test_load_that_answers_with_an_error_is_retried() -> None:
    unkept = {"load_session": {"how": "error", "said": "the database is locked"}}
    session = refuse_start(idle_session(), "handshake_failed", agent_description(unkept=unkept))
    assert (capability_standing(stored_capability()), execution_of(session).supports_session_resume) == ("failed", True)
    assert assess_session(session).cause.strategy is Strategy.NATIVE
    day = timezone.now()
    assert session_status(session)["capability_note"] == (
        f"Demo agent 1.2 announces session/load, but it failed on {day.day} {day:%b %Y}: it answered with an error."
    )


@pytest.mark.parametrize(("history", "row", "strategy"), [(True, 9, Strategy.HISTORY), (False, 10, Strategy.FRESH)])
def test_unsupported_resume_waits_for_the_next_prompt(history: bool, row: int, strategy: Strategy) -> None:
    session = idle_session()
    change(session.agent_profile, history_context_injection=history)
    session = refuse_start(session, "resume_unsupported", agent_description(unkept=UNIMPLEMENTED), permanent=True)
    execution, verdict = execution_of(session), assess_session(session)
    assert (session.state, session.error_code, session.next_restart_at) == (
        *("WAITING_FOR_INPUT", "resume_unsupported"),
        None,
    )
    assert (execution.resume_token, execution.rejected_resume_token) == ("", "conversation-1")
    assert execution.supports_session_resume is False
    assert (verdict.row, verdict.strategy, verdict.needs_resume) == (row, strategy, False)


def test_capability_learned_in_one_session_applies_to_others() -> None:
    refuse_start(idle_session(), "resume_unsupported", agent_description(unkept=UNIMPLEMENTED), permanent=True)
    other = idle_session()
    answer_start(other, {**agent_description(), "outcome": "created"}, mode="fresh_start")
    assert execution_of(other).supports_session_resume is False
    assert "it does not support the request" in execution_of(other).capability_note


def test_one_working_resume_method_is_enough() -> None:
    session = idle_session()
    answer_start(session, {**agent_description(resume=True, unkept=UNIMPLEMENTED), "outcome": "resumed"})
    assert execution_of(session).supports_session_resume is True
    assert (capability_standing(stored_capability()), capability_standing(stored_capability("resume_session"))) == (
        "failed",
        "unproven",
    )


def test_newer_agent_version_is_tried_again() -> None:
    old = refuse_start(
        idle_session(), "resume_unsupported", agent_description("1.2", unkept=UNIMPLEMENTED), permanent=True
    )
    assert execution_of(old).supports_session_resume is False

    answer_start(idle_session(), {**agent_description("1.3"), **LOADED})
    assert execution_of(old).supports_session_resume is None
    assert execution_of(old).capability_note == ""
    assert (
        capability_standing(stored_capability(version="1.2")),
        capability_standing(stored_capability(version="1.3")),
    ) == (
        "failed",
        "observed",
    )

    answer_start(old, {**agent_description("1.3"), **LOADED}, mode="resume")
    assert session_status(fresh(old))["supports_session_resume"]


def test_known_agent_version_changes_nothing() -> None:
    answer_start(idle_session(), {**agent_description("1.3"), **LOADED})
    old = refuse_start(
        idle_session(), "resume_unsupported", agent_description("1.2", unkept=UNIMPLEMENTED), permanent=True
    )
    answer_start(idle_session(), {**agent_description("1.3"), **LOADED})
    assert execution_of(old).supports_session_resume is False


def in_another_team(session: TaskSession) -> TaskSession:
    team = Group.objects.create(name="Another team")
    Task.objects.filter(pk=session.task_id).update(team=team)
    return fresh(session)


def with_another_profile(session: TaskSession) -> TaskSession:
    return change(session, agent_profile=AgentProfile.objects.create(name="Another", agent_type="demo"))


def on_another_executor(session: TaskSession) -> TaskSession:
    return change(session, executor=Executor.objects.create(name="Another", runtime="local_standalone"))


ELSEWHERE = pytest.mark.parametrize("elsewhere", [in_another_team, with_another_profile, on_another_executor])


@ELSEWHERE
def test_failure_elsewhere_makes_no_session_non_resumable(elsewhere: Callable[[TaskSession], TaskSession]) -> None:
    liar = elsewhere(idle_session())
    refuse_start(liar, "resume_unsupported", agent_description(unkept=UNIMPLEMENTED), permanent=True)
    session = idle_session()
    assert answer_start(session, {**agent_description(), **LOADED})
    assert execution_of(session).supports_session_resume is True
    assert execution_of(session).capability_note == ""


@ELSEWHERE
def test_replay_elsewhere_does_not_turn_silence_into_a_contradiction(
    elsewhere: Callable[[TaskSession], TaskSession],
) -> None:
    other = elsewhere(idle_session())
    resumed = {**agent_description(load=False, resume=True), "outcome": "resumed"}
    answer_start(other, {**resumed, "replayed": 2, "replayed_user_texts": [TEXT]})
    session = idle_session()
    assert answer_start(session, {**resumed, "replayed": 0, "replayed_user_texts": []})
    assert session.receipts.get().verified == "unproven"


@ELSEWHERE
def test_new_version_elsewhere_reopens_no_refusal(elsewhere: Callable[[TaskSession], TaskSession]) -> None:
    old = refuse_start(
        idle_session(), "resume_unsupported", agent_description("1.2", unkept=UNIMPLEMENTED), permanent=True
    )
    answer_start(elsewhere(idle_session()), {**agent_description("1.3"), **LOADED})
    assert execution_of(old).supports_session_resume is False


def test_new_version_of_another_command_does_not_apply() -> None:
    old = refuse_start(
        idle_session(), "resume_unsupported", agent_description("1.2", unkept=UNIMPLEMENTED), permanent=True
    )
    another = AgentProfile.objects.create(name="Another", agent_type="demo", command=["another-agent"])
    answer_start(idle_session(agent_profile=another), {**agent_description("1.3"), **LOADED})
    assert execution_of(old).supports_session_resume is False


def test_capability_that_works_later_counts_again() -> None:
    session = idle_session()
    assert not answer_start(session, {**agent_description(), "outcome": "loaded", "replayed": 0})
    answer_start(idle_session(), {**agent_description(), **LOADED})
    assert capability_standing(stored_capability()) == "observed"


def test_unchanged_capability_is_written_once_an_hour() -> None:
    answer_start(idle_session(), {**agent_description(), **LOADED})
    first = stored_capability().last_seen_at
    answer_start(idle_session(), {**agent_description(), **LOADED})
    assert stored_capability().last_seen_at == first
    AgentCapability.objects.update(last_seen_at=first - timedelta(hours=2))
    answer_start(idle_session(), {**agent_description(), **LOADED})
    assert stored_capability().last_seen_at > first


def test_start_loads_known_capabilities_in_one_query(django_assert_num_queries: Any) -> None:
    session = idle_session()
    scope = capability_scope(TaskSession.objects.select_related("task").get(id=session.id))
    what = build_capability_report(
        scope, "demo", {**agent_description(resume=True, unkept=UNIMPLEMENTED)}, kept={"resume_session": "pending"}
    )
    with django_assert_num_queries(1):
        judgement = assess_capabilities(what, load_known_capabilities(what), timezone.now())
    with django_assert_num_queries(2):  # one for each capability
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
        {**agent_description(), "unkept": {"load_session": {"how": "by magic", "said": ["?"]}, "x": {}}},
    ],
)
def test_malformed_capability_report_breaks_nothing(answer: dict[str, Any]) -> None:
    assert answer_start(idle_session(), {**answer, **LOADED})
    assert AgentCapability.objects.exclude(capability__in=["load_session", "resume_session"]).count() == 0


def test_stored_agent_error_does_not_contain_the_conversation_id() -> None:
    unkept = {"load_session": {"how": "error", "said": "cannot open conversation-1: locked"}}
    refuse_start(idle_session(), "handshake_failed", agent_description(unkept=unkept))
    assert stored_capability().broken_said == "cannot open …: locked"


def test_load_accepted_despite_a_mismatch_does_not_prove_the_capability() -> None:
    session = idle_session()
    lie = {**agent_description(), "outcome": "loaded", "replayed": 1, "replayed_user_texts": ["paint"]}
    assert not answer_start(session, lie)
    assert answer_start(session, lie, mode="accept_mismatch")
    assert capability_standing(stored_capability()) == "failed"
