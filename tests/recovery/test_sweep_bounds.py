"""A sweep costs only what should run, and a failure in one row affects no other row."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from executors_app import plugins
from executors_app.models import Executor
from executors_app.wire.executions import ExecutionFacts, LeftState, Observation, Observed
from executors_app.wire.protocol import JournalKind
from sessions_app.attention.models import AttentionItem
from sessions_app.models import Intent, Message, Prompt, RecoverySweep, Supervisor, SweepOutcome, TaskSession
from sessions_app.recovery.sweep import candidates, sweep_pass
from sessions_app.recovery.sweep.sweep_pass import MAX_CONCURRENT_ACTIONS, SweepRun, SweepScope, run_sweep
from sessions_app.sessions.services.status import session_status
from sessions_app.supervisor import loop
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.supervisor.journals import Journal, Line, ingest
from tests.supervisor.recording_agentctl import recording_agentctl
from tests.supervisor.recording_runtime import UNKNOWN, RecordingRuntime, lost_session, sweep_once, with_registry
from tests.supervisor.rows import NO_LEASE, change, execution_of, fresh, names, running_session
from tests.support.fake_agentctl import refusing_url

pytestmark = pytest.mark.django_db(transaction=True)


def with_history(session: TaskSession) -> TaskSession:
    journal = Journal()
    for number in range(3):
        Prompt.objects.create(session=session, message_id=f"p{number}", text="do it", state="queued")
        turn = [*journal.turn_begins(f"p{number}"), *journal.says("done"), journal.completes(f"p{number}")]
        ingest(session, turn, lease=None)
    return session


def queries_of(function: Any, *args: Any) -> int:
    with CaptureQueriesContext(connection) as seen:
        function(*args)
    return len(seen)


def test_loading_many_sessions_needs_as_many_queries_as_loading_one(runtime: RecordingRuntime) -> None:
    with_history(lost_session(runtime))
    one = queries_of(candidates.load_candidates, "me")
    for _ in range(19):
        with_history(lost_session(runtime))
    assert len(candidates.load_candidates("me")[0]) == 20
    assert queries_of(candidates.load_candidates, "me") == one


def test_sessions_not_seen_for_longest_are_observed_first(runtime: RecordingRuntime) -> None:
    now = timezone.now()
    last_seen = {"just now": now, "never": None, "a while ago": now - timedelta(minutes=1)}
    sessions = {
        str(running_session(runtime=runtime.name, execution={**NO_LEASE, "last_seen_at": at}).id): name
        for name, at in last_seen.items()
    }
    sweep_once(SweepScope("boot", dry_run=True))
    assert [sessions[one] for one in runtime.observed_sessions] == ["never", "a while ago", "just now"]


def test_deciding_needs_no_queries(runtime: RecordingRuntime) -> None:
    lost_session(runtime)
    (row,) = candidates.load_candidates("me")[0]
    look = Observation(Observed.DEAD)
    now = timezone.now()
    known: dict[str, Any] = {"boot": True, "unknown_before": False, "attached": False, "now": now}
    assert queries_of(lambda: candidates.sweep_facts(row, look, **known)) == 0


def test_status_query_count_does_not_depend_on_history(runtime: RecordingRuntime) -> None:
    plain, busy = lost_session(runtime), with_history(lost_session(runtime))
    counts = {queries_of(session_status, fresh(session)) for session in (plain, busy)}
    assert len(counts) == 1
    assert Message.objects.filter(session=busy).count() == 6


def test_status_changes_nothing(runtime: RecordingRuntime) -> None:
    session = lost_session(runtime)
    with CaptureQueriesContext(connection) as seen:
        session_status(fresh(session))
    assert [query["sql"][:6] for query in seen] == ["SELECT"] * len(seen)


def test_sessions_are_observed_concurrently_within_limits(runtime: RecordingRuntime) -> None:
    for _ in range(3):
        lost_session(runtime)
    sweep_once(SweepScope("command", concurrency=7, timeout=1.5))
    assert runtime.looks == [(3, 1.5, 7)]


def test_sweep_can_be_limited_to_sessions_or_a_runtime(runtime: RecordingRuntime) -> None:
    one, _, elsewhere = lost_session(runtime), lost_session(runtime), running_session(execution=NO_LEASE)
    assert [item.row.stored.session_id for item in sweep_once(SweepScope("command", sessions=[one.id])).decided] == [
        one.id
    ]
    found = sweep_once(SweepScope("command", runtime="local_standalone", dry_run=True)).decided
    assert [item.row.stored.session_id for item in found] == [elsewhere.id]


def test_sessions_with_work_are_started_first(runtime: RecordingRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        lost_session(runtime)
    last = max(TaskSession.objects.all(), key=lambda session: session.id)
    Prompt.objects.create(session=last, message_id="p1", text="do it")
    monkeypatch.setattr("sessions_app.recovery.sweep.sweep_pass.MAX_CONCURRENT_ACTIONS", 1)
    sweep_once()
    assert Intent.objects.filter(done_at=None).order_by("created_at")[0].session_id == last.id


class SilentMachine(RecordingRuntime):
    """A runtime with a machine that answers only after a session of another machine was read."""

    def __init__(self) -> None:
        super().__init__()
        self.silent: set[str] = set()
        self.other_was_read = threading.Event()
        self.waits: list[bool] = []

    def unread_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Line]:
        """Wait if the execution was on the silent machine."""
        if execution.session_id in self.silent:
            self.waits.append(self.other_was_read.wait(60))
        else:
            self.other_was_read.set()
        return super().unread_journal(execution, after, epoch)


def test_silent_machine_delays_no_session_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SilentMachine()
    known = {**plugins.runtimes(), runtime.name: runtime}
    monkeypatch.setattr(plugins, "runtimes", lambda: known)
    for _ in range(2 * MAX_CONCURRENT_ACTIONS):
        runtime.silent.add(str(lost_session(runtime).id))
    other = lost_session(runtime)
    machine = Executor.objects.create(name="other", runtime=runtime.name, config={"host": "other"})
    change(execution_of(other), executor=machine)
    sweep_once()
    assert runtime.waits == [True] * len(runtime.silent)


class SlowDisk(RecordingRuntime):
    """A runtime that reads all that is left at once, because each reading takes seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.readings: list[int] = []
        """The cursor of each reading."""

    def left_state(self, execution: ExecutionFacts, after: int, epoch: str) -> LeftState:
        """Return both, and count."""
        self.readings.append(after)
        lines = RecordingRuntime.unread_journal(self, execution, after, epoch)
        return LeftState(RecordingRuntime.resume_token(self, execution), lines)

    def resume_token(self, execution: ExecutionFacts) -> str | None:
        """Fail: that would be a second reading."""
        raise AssertionError

    def unread_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Line]:
        """Fail: that would be a second reading."""
        raise AssertionError


@pytest.mark.parametrize("gives_up", [False, True], ids=["restarts", "gives up"])
def test_disk_of_a_dead_agentctl_is_read_once(monkeypatch: pytest.MonkeyPatch, gives_up: bool) -> None:
    runtime = SlowDisk()
    known = {**plugins.runtimes(), runtime.name: runtime}
    monkeypatch.setattr(plugins, "runtimes", lambda: known)
    attempts = {"start_attempts": 5} if gives_up else {}
    session, journal = lost_session(runtime, **attempts), Journal()
    ingest(session, journal.turn_begins("p1"), lease=None)
    said = journal.line(JournalKind.LOG, text="the agent is out of credit")
    runtime.left[str(session.id)] = [*journal.says("done"), said]
    runtime.tokens[str(session.id)] = "conversation-2"
    sweep_once()
    row = execution_of(session)
    assert row.resume_token == "conversation-2"
    assert row.journal_seq == said["seq"]
    assert len(runtime.readings) == 1
    assert (fresh(session).state == "FAILED") is gives_up
    items = AttentionItem.objects.filter(session=session, detail__contains="out of credit")
    assert items.exists() is gives_up


def test_session_whose_action_fails_does_not_affect_others(runtime: RecordingRuntime) -> None:
    bad, good = lost_session(runtime), lost_session(runtime)
    runtime.broken.add(str(bad.id))
    result = sweep_once()
    assert result.outcomes[str(bad.id)].error == "RuntimeError: this disk is on fire"
    assert fresh(good).intents.filter(kind="start", done_at=None).exists()
    assert not fresh(bad).intents.filter(kind="start", done_at=None).exists()
    document = sweep_pass.build_report(result, "boot")
    assert (document["outcomes"]["failed"], document["outcomes"]["skipped"]) == (1, 1)


def test_runtime_that_cannot_observe_reports_unknown_and_blocks_no_other(runtime: RecordingRuntime) -> None:
    blind, other = lost_session(runtime), running_session(execution=NO_LEASE | {"agentctl_url": refusing_url()})
    runtime.blind = True
    sweep_once()
    assert execution_of(blind).error_code == "unreachable"
    assert other.intents.filter(kind="start", done_at=None).exists()


def test_uninstalled_runtime_is_unknown_not_dead(runtime: RecordingRuntime) -> None:
    session = lost_session(runtime)
    change(execution_of(session), runtime="uninstalled")
    result = sweep_once()
    assert [item.seen.reason for item in result.decided] == ["runtime_unavailable"]
    assert (fresh(session).state, fresh(session).error_code) == ("ERROR", "unreachable")


def test_living_agent_that_cannot_be_attached_is_not_reported_as_reattached(runtime: RecordingRuntime) -> None:
    session = lost_session(runtime)
    with recording_agentctl(session) as agentctl:
        report = agentctl.report()
    runtime.set_observation(session, Observation(Observed.ALIVE, report=report, url=agentctl.url))
    result = sweep_once()
    document = sweep_pass.build_report(result, "boot")
    assert document["sessions"][0]["error_message"]
    assert (document["outcomes"]["reattached"], document["outcomes"]["failed"]) == (0, 1)
    assert fresh(session).state == "WAITING_FOR_INPUT"


def test_open_stream_outweighs_a_failed_observation(runtime: RecordingRuntime) -> None:
    session = lost_session(runtime)

    async def sweep_twice(registry: ExecutionRegistry) -> list[SweepRun]:
        alive = Observation(Observed.ALIVE, report=agentctl.report(), url=agentctl.url)
        runtime.set_observation(session, alive)
        first = await run_sweep(registry, SweepScope("boot"), set())
        runtime.set_observation(session, UNKNOWN)
        return [first, await run_sweep(registry, SweepScope("boot"), set())]

    with recording_agentctl(session) as agentctl:
        rules = [result.decided[0].decision.rule for result in with_registry(sweep_twice)]
    assert rules == ["alive_same_agent", "attached"]
    assert fresh(session).state == "WAITING_FOR_INPUT"


def test_repeated_sweep_attaches_once(runtime: RecordingRuntime) -> None:
    session = lost_session(runtime)

    async def sweep_twice(registry: ExecutionRegistry) -> None:
        runtime.set_observation(session, Observation(Observed.ALIVE, report=agentctl.report(), url=agentctl.url))
        for _ in range(2):
            await run_sweep(registry, SweepScope("boot"), set())

    with recording_agentctl(session, Journal().says("hello")) as agentctl:
        with_registry(sweep_twice)
        assert agentctl.generations == [2]
    assert names(session).count("session.receipt") == 1


def run_sweeps(*scopes: SweepScope) -> None:
    """Run and store sweeps of one supervisor."""

    async def run() -> None:
        supervisor = loop.SupervisorLoop()
        await supervisor.open()
        try:
            for scope in scopes:
                await supervisor.sweep(scope)
        finally:
            await supervisor.close()

    asyncio.run(run())


def test_periodic_sweep_without_a_decision_is_not_stored(runtime: RecordingRuntime) -> None:
    sessions = [lost_session(runtime) for _ in range(2)]
    run_sweeps(SweepScope("boot"), SweepScope("reconcile"))
    assert list(RecoverySweep.objects.values_list("trigger", "examined")) == [("boot", 2)]
    assert {row.session_id for row in SweepOutcome.objects.all()} == {session.id for session in sessions}
    assert {row.rule for row in SweepOutcome.objects.all()} == {"dead_resume_now"}
    assert not Supervisor.objects.exists()


def test_boot_sweep_stores_sessions_left_alone(runtime: RecordingRuntime) -> None:
    session = lost_session(runtime, policy="on_open")
    run_sweeps(SweepScope("boot"), SweepScope("boot"))
    kept = SweepOutcome.objects.filter(session=session).order_by("id")
    assert [(row.rule, row.executor_status) for row in kept] == [("dead_resume_later", "stopped")] * 2


def test_empty_boot_sweep_is_stored(runtime: RecordingRuntime) -> None:
    run_sweeps(SweepScope("boot"))
    assert RecoverySweep.objects.get().examined == 0


def test_sweep_and_its_rows_are_stored_together(runtime: RecordingRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    lost_session(runtime)
    result = sweep_once()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sweep_pass, "insert_rows", interrupt)
        sweep_pass.store_sweep(sweep_pass.build_report(result, "boot"), result)
    assert not RecoverySweep.objects.filter(id=result.sweep_id).exists()

    sweep_pass.store_sweep(sweep_pass.build_report(result, "boot"), result)
    assert RecoverySweep.objects.get(id=result.sweep_id).rows.count() == 1
