"""A sweep writes what its rule decides, and a second sweep writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from executors_app.wire.executions import Observation, Observed, WorkspaceState
from executors_app.wire.protocol import AgentState
from sessions_app.accounts.models import TeamRole
from sessions_app.models import Prompt, Suspension, TaskSession
from sessions_app.recovery.sweep.sweep_pass import SweepRun, SweepScope
from tests.supervisor import database_dump
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.recording_agentctl import recording_agentctl
from tests.supervisor.recording_runtime import DEAD, UNKNOWN, RecordingRuntime, sweep_once
from tests.supervisor.rows import (
    NO_LEASE,
    change,
    execution_of,
    fresh,
    last_payload,
    names,
    prompt_states,
    running_session,
    runs,
)

pytestmark = pytest.mark.django_db(transaction=True)

GONE = Observation(Observed.DEAD, workspace=WorkspaceState.GONE, workspace_reason="The branch was deleted.")
SOON, LATER = timezone.now() - timedelta(seconds=1), timezone.now() + timedelta(days=1)
LOST = {"supports_session_resume": False}


@dataclass(frozen=True)
class Case:
    """A session in mid-turn, the observation of it, and the expected result of a sweep."""

    rule: str
    seen: Observation | AgentState
    fields: dict[str, Any] = field(default_factory=dict)
    row: dict[str, Any] = field(default_factory=dict)
    state: str = "WAITING_FOR_INPUT"
    error: str = ""
    executor: str = "stopped"
    orders: tuple[str, ...] = ()
    run: str = "interrupted"
    receipts: tuple[str, ...] = ()
    trigger: str = "boot"
    stays: bool = False
    """Whether the sweep writes nothing at all."""


def unchanged_case(rule: str, seen: Observation | AgentState, **more: Any) -> Case:
    return Case(rule, seen, state="RUNNING", executor="ready", run="running", stays=True, **more)


A = AgentState
CASES = (
    unchanged_case("foreign_lease", DEAD, row={"owner": "other", "lease_expires_at": LATER}),
    unchanged_case("other_host", Observation(Observed.UNKNOWN, reason="other_host")),
    unchanged_case("unknown_first", UNKNOWN, trigger="reconcile"),
    Case("unknown_boot", UNKNOWN, state="ERROR", error="unreachable", executor="error", run="running"),
    Case("alive_unwanted", A.WORKING, {"desired_state": "stopped"}, state="RUNNING", executor="ready", run="running",
         orders=("stop",)),
    Case("alive_same_agent", A.WORKING, state="RUNNING", executor="ready", run="running"),
    Case("alive_same_agent", A.WORKING, row={"owner": "dead", "lease_expires_at": SOON}, state="RUNNING",
         executor="ready", run="running", receipts=("reattached",)),
    Case("alive_agent_gone_resume_now", A.EXITED, executor="ready", orders=("start",)),
    Case("alive_agent_gone_resume_later", A.EXITED, {"policy": "on_open"}, executor="ready"),
    Case("alive_agent_gone_not_resumable", A.EXITED, row=LOST, state="ERROR", error="not_resumable", executor="ready"),
    Case("dead_unwanted", DEAD, {"desired_state": "stopped"}),
    Case("dead_resume_now", DEAD, executor="ready", orders=("start",)),
    Case("dead_resume_now", DEAD, {"policy": "working"}, executor="ready", orders=("start",)),
    Case("dead_resume_now", replace(DEAD, workspace=WorkspaceState.REBUILDABLE), executor="ready", orders=("start",)),
    Case("dead_resume_later", DEAD, {"policy": "on_open"}),
    Case("dead_resume_later", DEAD, {"policy": "manual"}),
    Case("dead_not_resumable", DEAD, row=LOST, state="ERROR", error="not_resumable", executor="ready",
         orders=("start",)),
    Case("dead_workspace_gone", GONE, state="ERROR", error="worktree_missing", executor="error"),
    Case("backing_off", DEAD, {"start_attempts": 2, "next_restart_at": LATER}),
    Case("gave_up", DEAD, {"start_attempts": 5}, state="FAILED", error="gave_up"),
    Case("start_under_way", DEAD, row={"status": "starting"}, trigger="reconcile", state="RUNNING",
         executor="starting", run="running", stays=True),
)  # fmt: skip
IDS = [f"{case.rule}-{number}" for number, case in enumerate(CASES)]


@contextmanager
def case_session(case: Case, runtime: RecordingRuntime) -> Iterator[TaskSession]:
    """Yield the session of a case, with its agentctl if it is alive."""
    session, journal = running_session(runtime=runtime.name), Journal()
    session.prompts.create(message_id="p1", text="write it", state="sending")
    ingest(session, [*journal.turn_begins("p1"), *journal.says("I begin")])
    change(execution_of(session), **(NO_LEASE | case.row), last_seen_at=None)
    session = change(session, **case.fields)
    if isinstance(case.seen, Observation):
        runtime.set_observation(session, case.seen)
        yield session
        return
    with recording_agentctl(session, Journal().turn_begins("p1") + journal.says("…"), str(case.seen)) as agentctl:
        agentctl.lines = agentctl.lines[:2]
        runtime.set_observation(session, Observation(Observed.ALIVE, report=agentctl.report(), url=agentctl.url))
        yield session


def rule_of(result: SweepRun) -> str:
    (decided,) = result.decided
    return decided.decision.rule


def orders(session: TaskSession) -> tuple[str, ...]:
    return tuple(session.intents.filter(done_at=None).values_list("kind", flat=True))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_sweep_writes_what_its_rule_decides_and_repeating_it_nothing(case: Case, runtime: RecordingRuntime) -> None:
    with case_session(case, runtime) as session:
        before = database_dump.dump()
        result = sweep_once(SweepScope(case.trigger))  # type: ignore[arg-type]
        after, row = fresh(session), execution_of(session)
        assert rule_of(result) == case.rule
        assert (after.state, after.error_code, row.status) == (case.state, case.error, case.executor)
        assert orders(session) == case.orders
        assert runs(session) == [("p1", case.run)]
        assert tuple(session.receipts.values_list("kind", flat=True)) == case.receipts
        assert (database_dump.dump() == before) is case.stays
        assert row.resume_token == "conversation-1"

        written = states_and_seq(session)
        sweep_once(SweepScope(case.trigger))  # type: ignore[arg-type]
        assert states_and_seq(session) == written


def states_and_seq(session: TaskSession) -> dict[str, Any]:
    rows = database_dump.dump(leaving_out={*database_dump.MOMENTS, "generation", "owner", "lease_expires_at"})
    return {"states": rows, "seq": fresh(session).last_seq}


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_dry_run_decides_the_same_and_writes_nothing(case: Case, runtime: RecordingRuntime) -> None:
    with case_session(case, runtime):
        before = database_dump.dump()
        result = sweep_once(SweepScope(case.trigger, dry_run=True))  # type: ignore[arg-type]
        assert rule_of(result) == case.rule
        assert database_dump.dump() == before
        assert runtime.ended == []


def test_error_says_why_the_worktree_cannot_be_restored(runtime: RecordingRuntime) -> None:
    with case_session(Case("dead_workspace_gone", GONE), runtime) as session:
        sweep_once()
        assert fresh(session).error_message == execution_of(session).error_message == "The branch was deleted."


def test_unreachable_session_recovers_without_interruption_when_seen_again(runtime: RecordingRuntime) -> None:
    with case_session(Case("", A.WORKING), runtime) as session:
        alive, unknown = runtime.sees[str(session.id)], set[str]()
        runtime.set_observation(session, UNKNOWN)
        sweep_once(SweepScope("reconcile"), unknown)
        assert fresh(session).state == "RUNNING"
        sweep_once(SweepScope("reconcile"), unknown)
        assert (fresh(session).state, execution_of(session).error_code) == ("ERROR", "unreachable")
        assert (prompt_states(session), runs(session)) == ({"p1": "delivered"}, [("p1", "running")])
        runtime.set_observation(session, alive)
        sweep_once(SweepScope("reconcile"), unknown)
        assert (fresh(session).state, execution_of(session).status) == ("RUNNING", "ready")
        assert "session.run.interrupted" not in names(session)


def test_sweep_of_one_session_keeps_unknown_results_of_others(runtime: RecordingRuntime) -> None:
    silent, other = (running_session(runtime=runtime.name, execution=NO_LEASE) for _ in range(2))
    for session in (silent, other):
        runtime.set_observation(session, UNKNOWN)
    unknown: set[str] = set()
    sweep_once(SweepScope("reconcile", sessions=[silent.id]), unknown)
    sweep_once(SweepScope("reconcile", sessions=[other.id]), unknown)
    sweep_once(SweepScope("reconcile"), unknown)
    assert [execution_of(session).error_code for session in (silent, other)] == ["unreachable"] * 2


def test_living_agent_is_taken_over_with_a_new_generation_and_drained(runtime: RecordingRuntime) -> None:
    session, journal = (
        running_session(runtime=runtime.name, execution={"owner": "dead", "lease_expires_at": SOON}),
        Journal(),
    )
    lines = [*journal.turn_begins("p1"), *journal.says("while ", "you were away"), journal.completes("p1")]
    with recording_agentctl(session, lines) as agentctl:
        runtime.set_observation(session, Observation(Observed.ALIVE, report=agentctl.report(), url=agentctl.url))
        sweep_once()
        assert agentctl.generations == [2]
        assert agentctl.acknowledged == [5]
    assert runs(session) == [("p1", "completed")]
    receipt = session.receipts.get()
    assert (receipt.kind, receipt.verified) == ("reattached", "same_process")
    assert receipt.evidence["journal_lines_drained"] == 5
    assert execution_of(session).owner == ""


def test_journal_left_behind_is_read_before_the_turn_is_judged(runtime: RecordingRuntime) -> None:
    session, journal = running_session(runtime=runtime.name, execution=NO_LEASE), Journal()
    ingest_without_lease(session, journal.turn_begins("p1"))
    runtime.left[str(session.id)] = [*journal.says("done"), journal.completes("p1")]
    runtime.tokens[str(session.id)] = "conversation-2"
    sweep_once()
    assert runs(session) == [("p1", "completed")]
    assert "session.run.interrupted" not in names(session)
    assert execution_of(session).resume_token == "conversation-2"


def test_turn_known_only_from_the_left_journal_is_interrupted(runtime: RecordingRuntime) -> None:
    session, journal = running_session(runtime=runtime.name, execution=NO_LEASE), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="go on", state="sending")
    runtime.left[str(session.id)] = journal.turn_begins("p1")
    sweep_once()
    assert runs(session) == [("p1", "interrupted")]
    assert prompt_states(session)["p1"] != "delivered"


def ingest_without_lease(session: TaskSession, lines: list[dict[str, Any]]) -> None:
    ingest(session, lines, lease=None)
    change(execution_of(session), last_seen_at=None)


def test_interrupted_turn_is_recorded_once_and_continued(runtime: RecordingRuntime) -> None:
    with case_session(Case("dead_resume_now", DEAD), runtime) as session:
        sweep_once()
        assert names(session).count("session.run.interrupted") == 1
        assert prompt_states(session) == {"p1": "dismissed", f"continue:{session.runs.get().id}": "queued"}
        assert last_payload(session, "session.run.interrupted")["reason"] == "agentctl_gone"


def test_leftover_processes_are_ended_before_the_start(runtime: RecordingRuntime) -> None:
    with case_session(Case("dead_resume_now", replace(DEAD, leftovers=2)), runtime) as session:
        sweep_once()
        assert runtime.ended == [str(session.id)]


def test_stopped_session_that_should_run_again_is_started(runtime: RecordingRuntime) -> None:
    stopped = {**NO_LEASE, "status": "stopped", "status_reason": "stopped"}
    session = running_session(runtime=runtime.name, execution=stopped, launch_id="")
    sweep_once()
    assert orders(session) == ("start",)


@pytest.mark.parametrize("reason", ["idle", "new"])
def test_sleeping_session_is_not_examined(runtime: RecordingRuntime, reason: str) -> None:
    running_session(runtime=runtime.name, execution={**NO_LEASE, "status": "stopped", "status_reason": reason})
    assert sweep_once().decided == []


@pytest.mark.parametrize(("limit_lasts", "expected"), [(True, ()), (False, ("start",))])
def test_dead_agent_is_started_for_a_prompt_only_when_its_limit_has_ended(
    runtime: RecordingRuntime, limit_lasts: bool, expected: tuple[str, ...]
) -> None:
    session = running_session(runtime=runtime.name, execution=NO_LEASE, policy="on_open")
    now = timezone.now()
    turn = session.runs.create(message_id="p1", state="failed", started_at=now, ended_at=now)
    wakes_at = now + timedelta(hours=1 if limit_lasts else -1)
    Suspension.objects.create(session=session, run=turn, reason="usage_limit", wakes_at=wakes_at)
    Prompt.objects.create(session=session, message_id="p2", text="next")
    sweep_once()
    assert orders(session) == expected


def test_session_of_a_departed_owner_is_not_started_automatically(runtime: RecordingRuntime) -> None:
    session = running_session(runtime=runtime.name, execution=NO_LEASE)
    assert session.owner is not None
    session.owner.groups.clear()
    assert rule_of(sweep_once()) == "owner_left"
    assert orders(session) == ()


def test_session_of_an_owner_turned_viewer_is_not_started_automatically(runtime: RecordingRuntime) -> None:
    session = running_session(runtime=runtime.name, execution=NO_LEASE)
    assert session.owner is not None
    TeamRole.objects.create(user=session.owner, team=session.task.team, role=TeamRole.Role.VIEWER)
    assert rule_of(sweep_once()) == "owner_left"
    assert orders(session) == ()


def test_agent_that_died_long_ago_does_not_count_as_stable(runtime: RecordingRuntime) -> None:
    began = timezone.now() - timedelta(hours=1)
    session = running_session(
        runtime=runtime.name, execution=NO_LEASE | {"last_seen_at": began}, ready_since=began, start_attempts=2
    )
    line = Journal().accepted("p1") | {"ts": (began + timedelta(seconds=5)).timestamp()}
    runtime.left[str(session.id)] = [line]
    runtime.tokens[str(session.id)] = "conversation-2"
    sweep_once()
    assert fresh(session).start_attempts == 2
    assert execution_of(session).last_seen_at == began + timedelta(seconds=5)


def test_start_after_a_death_says_when_the_agent_died(runtime: RecordingRuntime) -> None:
    session = running_session(runtime=runtime.name, execution=NO_LEASE)
    sweep_once()
    (start,) = session.intents.filter(kind="start", done_at=None)
    died_at = fresh(session).died_at
    assert died_at is not None
    assert start.agent_died_at == died_at
    assert died_at <= start.created_at


@pytest.mark.parametrize("seen", [DEAD, UNKNOWN], ids=["dead", "unknown"])
def test_unsuccessful_observation_does_not_update_last_seen(runtime: RecordingRuntime, seen: Observation) -> None:
    last = timezone.now() - timedelta(hours=1)
    session = running_session(runtime=runtime.name, execution=NO_LEASE | {"last_seen_at": last}, policy="on_open")
    runtime.set_observation(session, replace(seen, seen_at=timezone.now()))
    sweep_once()
    assert execution_of(session).last_seen_at == last
