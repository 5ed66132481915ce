"""A start is claimed once, and the agent's answer is verified before it counts."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.plugins import agent_type
from executors_app.wire.protocol import JournalKind
from sessions_app.models import Intent, Lease, LeaseLost, Prompt, session_transaction
from sessions_app.prompts.services import dismiss_prompt
from sessions_app.recovery.rules import verification
from sessions_app.recovery.rules.resumability import Mode, Strategy
from sessions_app.recovery.rules.verification import find_received
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.status import session_status
from sessions_app.starts import agent_start, claims
from sessions_app.starts.outcomes import StartFailure, write_start_failure
from tests.supervisor import database_dump
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import (
    MINE,
    change,
    execution_of,
    fresh,
    make_session,
    names,
    prompt_states,
    running_session,
    runs,
)
from tests.supervisor.start_claims import answer_start, claim_start, session_without_agent, try_claim

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(("start_timeout", "seconds"), [(300.0, 240.0), (30.0, 24.0), (6000.0, 600.0)])
def test_slow_agent_has_most_of_the_start_for_its_first_answer(
    start_timeout: float, seconds: float, settings: Any
) -> None:
    settings.KANDEV_START_TIMEOUT = start_timeout
    plan = claim_start(session_without_agent())
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    assert order.body["timeout"] == seconds


def test_demo_agent_uses_the_command_of_its_runtime() -> None:
    session = session_without_agent()
    change(session.agent_profile, agent_type="demo", command=[])
    change(execution_of(session), runtime="remote")
    plan = claim_start(session)
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    assert order.body["argv"] == ["kandev-demo-agent"]


@pytest.mark.parametrize(
    ("runtime", "profile_env", "path"),
    [
        ("local_standalone", {}, "/opt/new/bin:/usr/bin"),
        ("local_standalone", {"PATH": "/only/this"}, "/only/this"),
        ("docker", {}, None),
        ("remote", {}, None),
    ],
)
def test_agent_on_our_machine_gets_the_present_path(
    monkeypatch: pytest.MonkeyPatch, runtime: str, profile_env: dict[str, str], path: str | None
) -> None:
    monkeypatch.setenv("PATH", "/opt/new/bin:/usr/bin")
    session = session_without_agent()
    change(session.agent_profile, env=profile_env)
    change(execution_of(session), runtime=runtime)
    plan = claim_start(session)
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    assert order.body["env"].get("PATH") == path


def test_claim_counts_the_start_once() -> None:
    session = session_without_agent()
    plan = claim_start(session)
    assert (fresh(session).start_attempts, fresh(session).state) == (1, "STARTING")
    assert execution_of(session).status == "starting"
    assert claims.claim_start(session.id, plan.intent_id, MINE.owner, running_launch_id=None) == plan
    assert fresh(session).start_attempts == 1


def test_claim_of_an_execution_held_by_another_writes_nothing() -> None:
    session = session_without_agent()
    Intent.objects.create(session=session, kind="start", payload={"mode": "auto"})
    before = database_dump.dump()
    intent = session.intents.get(done_at=None)
    assert claims.claim_start(session.id, intent.id, "somebody else", running_launch_id=None) is None
    assert database_dump.dump() == before


def test_claim_under_a_held_lease_does_not_acquire_it_again() -> None:
    session = session_without_agent()
    intent, before = Intent.objects.create(session=session, kind="start"), execution_of(session)
    plan = claims.claim_start(session.id, intent.id, MINE.owner, running_launch_id="", held_lease=MINE)
    assert plan is not None
    assert plan.lease == MINE
    after = execution_of(session)
    assert (after.generation, after.lease_expires_at) == (before.generation, before.lease_expires_at)


@pytest.mark.parametrize("held", [Lease(MINE.owner, MINE.generation + 1), Lease("another", MINE.generation)])
def test_claim_under_a_lost_lease_writes_nothing(held: Lease) -> None:
    session = session_without_agent()
    intent, before = Intent.objects.create(session=session, kind="start"), database_dump.dump()
    with pytest.raises(LeaseLost):
        claims.claim_start(session.id, intent.id, held.owner, running_launch_id="", held_lease=held)
    assert database_dump.dump() == before


def test_resume_beside_a_live_agentctl_needs_few_queries() -> None:
    session = session_without_agent()
    intent = Intent.objects.create(session=session, kind="start", payload={"mode": "auto"})
    with database_dump.counting() as queries:
        plan = claims.claim_start(session.id, intent.id, MINE.owner, running_launch_id="", held_lease=MINE)
        assert plan is not None
        order = agent_start.prepare_agent_start(plan, plan.lease, found=None)
        assert order is not None
        answer = {"outcome": "loaded", "replayed": 2, "replayed_user_texts": ["write the parser"]}
        assert agent_start.write_agent_started(
            plan, plan.lease, order, answer, agent_start.load_conversation_facts(plan.session_id)
        )
    reads = [query["sql"] for query in queries.captured_queries if query["sql"].startswith("SELECT")]
    # Among them: one for the MCP servers of team and repository, five for the requests to compare with the replay.
    assert len(reads) <= 31, reads


def test_claim_of_an_unwanted_start_is_settled() -> None:
    session = session_without_agent(desired_state="stopped")
    assert try_claim(session) is None
    assert session.intents.latest("created_at").outcome == "stopped"
    assert fresh(session).state == "WAITING_FOR_INPUT"


def test_start_on_a_full_executor_waits_and_is_reported() -> None:
    running_session()
    session = session_without_agent()
    execution = execution_of(session)
    assert execution.executor is not None
    change(execution.executor, max_live=1)
    assert try_claim(session) is None
    assert session.intents.filter(kind="start", done_at=None).exists()
    assert session_status(fresh(session))["queued_for_capacity"]


def test_replayed_conversation_is_verified() -> None:
    session = session_without_agent()
    assert answer_start(session, resume_token="conversation-2", replayed=4, replayed_user_texts=["Write  the PARSER"])
    receipt = session.receipts.get()
    assert (receipt.kind, receipt.verified, receipt.strategy) == ("loaded", "replay", "native")
    assert fresh(session).state == "WAITING_FOR_INPUT"
    assert execution_of(session).resume_token == "conversation-2"


@pytest.mark.parametrize(
    "answer",
    [
        {"replayed": 2, "replayed_user_texts": ["something else altogether"]},
        {"replayed": 0, "replayed_user_texts": []},
        {"outcome": "created"},
    ],
)
def test_other_conversation_is_rejected(answer: dict[str, Any]) -> None:
    session = session_without_agent()
    assert not answer_start(session, resume_token="conversation-2", **answer)
    session, row = fresh(session), execution_of(session)
    assert (session.state, session.error_code, session.context_mismatch) == ("ERROR", "context_mismatch", True)
    assert row.resume_token == "conversation-1"
    assert (session.receipts.get().kind, session.next_restart_at, session.launch_id) == ("failed", None, "")


def test_repeated_start_after_a_lost_answer_is_verified_again() -> None:
    session = session_without_agent()
    plan = claim_start(session)
    launch = str(plan.intent_id)
    assert agent_start.prepare_agent_start(plan, plan.lease, found=None) is not None
    change(session, state="WAITING_FOR_INPUT", launch_id=launch)  # the next supervisor found the agent
    change(execution_of(session), status="ready", resume_token="conversation-2")

    again = claims.claim_start(session.id, plan.intent_id, MINE.owner, running_launch_id=launch)
    assert again is not None
    order = agent_start.prepare_agent_start(again, again.lease, found=launch)
    assert order is not None
    assert order.strategy == "native"
    lie = {"outcome": "loaded", "replayed": 2, "replayed_user_texts": ["something else"], "resume_token": "c2"}
    assert not agent_start.write_agent_started(
        again, again.lease, order, lie, agent_start.load_conversation_facts(again.session_id)
    )
    assert fresh(session).error_code == "context_mismatch"
    assert [(row.kind, row.launch_id) for row in session.receipts.all()] == [("failed", launch)]


def test_start_beside_an_agent_of_another_launch_is_settled() -> None:
    session = running_session()
    intent = Intent.objects.create(session=session, kind="start", payload={"mode": "auto"})
    assert claims.claim_start(session.id, intent.id, MINE.owner, running_launch_id="another") is None
    assert Intent.objects.get(id=intent.id).outcome == "already_running"


def test_agent_started_after_a_stop_is_not_kept() -> None:
    session = session_without_agent()
    plan = claim_start(session)
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    intents.request_stop(session.id, None)
    answer = {"outcome": "loaded", "replayed": 1, "replayed_user_texts": ["write the parser"]}
    assert not agent_start.write_agent_started(
        plan, plan.lease, order, answer, agent_start.load_conversation_facts(plan.session_id)
    )
    assert not session.receipts.exists()
    assert fresh(session).launch_id == ""


def test_replayed_prompt_settles_a_held_prompt() -> None:
    session = session_without_agent()
    for message_id, text in (("p2", "run the tests"), ("p3", "never arrived")):
        Prompt.objects.create(session=session, message_id=message_id, text=text, state="held")
    answer_start(session, replayed=3, replayed_user_texts=["write the parser", "run the tests"])
    assert prompt_states(session) == {"p1": "done", "p2": "interrupted", "p3": "held"}


@pytest.mark.parametrize(
    ("replayed", "state"),
    [(["write the parser"], "held"), (["write the parser", "write the parser"], "interrupted")],
)
def test_replay_of_an_earlier_prompt_does_not_prove_an_identical_later_one(replayed: list[str], state: str) -> None:
    session = session_without_agent()
    Prompt.objects.create(session=session, message_id="p2", text="write the parser", state="held")
    answer_start(session, replayed=3, replayed_user_texts=replayed)
    assert prompt_states(session) == {"p1": "done", "p2": state}


def test_prompt_stays_held_if_another_one_was_dismissed_during_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_without_agent()
    for message_id in ("p2", "p3"):
        Prompt.objects.create(session=session, message_id=message_id, text="run the tests", state="held")

    def dismiss_meanwhile(*arguments: Any) -> frozenset[int]:
        dismiss_prompt(session.id, "p3")
        return find_received(*arguments)

    monkeypatch.setattr(verification, "find_received", dismiss_meanwhile)
    answer_start(session, replayed=3, replayed_user_texts=["write the parser", "run the tests"])
    assert prompt_states(session) == {"p1": "done", "p2": "held", "p3": "dismissed"}


def test_short_prompt_inside_another_text_is_not_proven() -> None:
    session = session_without_agent()
    Prompt.objects.create(session=session, message_id="p2", text="continue", state="held")
    replayed = ["The last turn was interrupted. Continue with it.\n\nwrite the parser"]
    answer_start(session, replayed=3, replayed_user_texts=replayed)
    assert prompt_states(session) == {"p1": "done", "p2": "held"}


def test_user_can_retry_the_rejected_token() -> None:
    session = session_without_agent()
    change(execution_of(session), resume_token="", rejected_resume_token="conversation-0")
    plan = claim_start(session, Mode.RESUME)
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    assert (order.strategy, order.body["resume_token"]) == (Strategy.NATIVE, "conversation-0")


def test_fresh_start_sets_the_old_token_aside() -> None:
    session = session_without_agent()
    plan = claim_start(session, Mode.FRESH_START)
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    assert order.body["resume_token"] is None
    agent_start.write_agent_started(
        plan,
        plan.lease,
        order,
        {"outcome": "created", "resume_token": "conversation-2"},
        agent_start.load_conversation_facts(plan.session_id),
    )
    row = execution_of(session)
    assert (row.resume_token, row.rejected_resume_token) == ("conversation-2", "conversation-1")
    assert session.receipts.get().kind == "fresh"


def test_fresh_start_without_a_new_token_sets_the_old_one_aside() -> None:
    session = session_without_agent()
    plan = claim_start(session, Mode.FRESH_START)
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    agent_start.write_agent_started(
        plan,
        plan.lease,
        order,
        {"outcome": "created", "resume_token": None},
        agent_start.load_conversation_facts(plan.session_id),
    )
    row = execution_of(session)
    assert (row.resume_token, row.rejected_resume_token) == ("", "conversation-1")
    named = Journal().line(JournalKind.SESSION_IDENTIFIED, fingerprint="f")
    ingest(session, [named], token={"resume_token": "conversation-2"})
    assert execution_of(session).resume_token == "conversation-2"


@pytest.mark.parametrize(
    ("mode", "kept", "text"),
    [
        (Mode.AUTO, {}, "message-7"),
        (Mode.FRESH_START, {}, None),
        (Mode.RESUME, {"resume_token": "", "rejected_resume_token": "conversation-0"}, None),
    ],
)
def test_last_message_is_sent_only_with_its_own_conversation(
    mode: Mode, kept: dict[str, str], text: str | None
) -> None:
    session = session_without_agent()
    change(execution_of(session), last_message_uuid="message-7", **kept)
    plan = claim_start(session, mode)
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    assert order.body["last_message_uuid"] == text


def test_start_request_contains_agent_type_and_profile_settings() -> None:
    session = session_without_agent()
    change(session.agent_profile, model="small", mode="plan", additional_directories=["/srv/docs"], args=["--fast"])
    plan = claim_start(session)
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    kind = agent_type("demo")
    assert order.body["argv"] == [*kind.argv, "--fast"]
    assert (order.body["model"], order.body["launch_id"]) == ("small", str(plan.intent_id))
    assert (order.body["mode"], order.body["additional_directories"]) == ("plan", ["/srv/docs"])
    assert order.body["gone_patterns"] == list(kind.gone_patterns)


@pytest.mark.parametrize("login", [{"action": "login", "method": "browser"}, None], ids=["login", "none"])
def test_start_request_contains_the_login_of_its_intent(login: dict[str, str] | None) -> None:
    session = session_without_agent()
    intent = Intent.objects.create(session=session, kind="start", payload={"mode": "auto", "login": login})
    plan = claims.claim_start(session.id, intent.id, MINE.owner, running_launch_id=None)
    assert plan is not None
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    assert {name: order.body.get("login", {}).get(name) for name in login or {}} == (login or {})
    assert ("login" in order.body) is bool(login)


@pytest.mark.parametrize("state", ["CREATED", "WAITING_FOR_INPUT", "ERROR", "FAILED"])
def test_workspace_can_be_opened_in_every_state(state: str) -> None:
    session = make_session(state=state) if state == "CREATED" else session_without_agent(state=state)
    session.intents.filter(kind="start").update(payload={"mode": "workspace_only"})
    change(execution_of(session), owner="", lease_expires_at=None)
    plan = claim_start(session, Mode.WORKSPACE_ONLY)
    assert agent_start.prepare_agent_start(plan, plan.lease, found="") is None
    assert fresh(session).state == ("FAILED" if state == "FAILED" else "WAITING_FOR_INPUT")
    assert session.receipts.get().kind == "workspace_only"
    assert fresh(session).metadata["workspace_only"] is True


@pytest.mark.parametrize("state", ["WAITING_FOR_INPUT", "FAILED"])
def test_failed_workspace_start_is_reported_in_every_state(state: str) -> None:
    session = session_without_agent(state=state)
    plan = claim_start(session, Mode.WORKSPACE_ONLY)
    failure = StartFailure("launch_failed", "Nobody answered.", executor_failed=True)
    write_start_failure(session.id, plan.intent_id, plan.lease, failure)
    assert not session.intents.filter(done_at=None).exists()
    assert session.receipts.get().reason == "launch_failed"
    assert fresh(session).state == ("FAILED" if state == "FAILED" else "ERROR")


def test_agent_whose_answer_was_lost_is_reattached() -> None:
    session = session_without_agent()
    plan = claim_start(session)
    agent_start.write_reattached(plan, plan.lease, {"agent": {"launch_id": "earlier"}})
    receipt = session.receipts.get()
    assert (receipt.kind, receipt.verified) == ("reattached", "same_process")
    assert (fresh(session).launch_id, fresh(session).state) == ("earlier", "WAITING_FOR_INPUT")


def test_start_writes_nothing_under_a_lost_lease() -> None:
    session = session_without_agent()
    plan = claim_start(session)
    change(execution_of(session), owner="somebody else")
    before = database_dump.dump()
    with pytest.raises(LeaseLost), session_transaction(session.id, plan.lease):
        pass
    with pytest.raises(LeaseLost):
        write_start_failure(session.id, plan.intent_id, plan.lease, StartFailure("agent_exited", "It ended at once."))
    assert database_dump.dump() == before
    assert "session.receipt" not in names(session)


@pytest.mark.parametrize(("found", "left"), [(None, [("p1", "interrupted")]), ("", [("p1", "running")])])
def test_open_turn_of_a_dead_agent_is_interrupted_before_the_next_start(
    found: str | None, left: list[tuple[str, str]]
) -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="write the parser", state="sending")
    ingest(session, journal.turn_begins("p1"))
    plan = claim_start(change(session, launch_id=""))
    assert agent_start.prepare_agent_start(plan, plan.lease, found=found) is not None
    assert runs(session) == left
    assert fresh(session).state == "STARTING"
