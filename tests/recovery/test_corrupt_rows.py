"""Rows with invalid values are reported and skipped; other sessions recover as usual."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from sessions_app.models import Intent, Prompt, SweepOutcome, TaskSession
from sessions_app.prompts.delivery import send_next_prompt
from sessions_app.recovery.sweep import sweep_pass
from sessions_app.recovery.sweep.sweep_pass import SweepRun, SweepScope, run_sweep
from sessions_app.starts.execution import execute_start
from sessions_app.supervisor.dispatcher import Dispatcher
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.supervisor.corrupt_rows import DAMAGES, EVERY_DAMAGE, FAR_FUTURE, Damage, of_execution, of_session, pair, raw
from tests.supervisor.recording_agentctl import recording_agentctl
from tests.supervisor.recording_runtime import RecordingRuntime, sweep_once, with_registry
from tests.supervisor.rows import NO_LEASE, change, execution_of, fresh, prompt_states, running_session

pytestmark = pytest.mark.django_db(transaction=True)


def start_ordered(session: TaskSession) -> bool:
    return Intent.objects.filter(session=session, kind="start", done_at=None).exists()


def report_rows(result: SweepRun) -> dict[str, dict[str, Any]]:
    document = with_registry(lambda registry: registry.database(sweep_pass.build_report, result, "boot"))
    return {row["session_id"]: row for row in document["sessions"]}


@EVERY_DAMAGE
def test_sweep_reports_the_damaged_session_and_recovers_the_other(
    damage: Damage, runtime: RecordingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    ill, healthy = pair(runtime, damage)
    with caplog.at_level(logging.ERROR, logger="sessions_app.recovery.sweep.sweep_pass"):
        result = sweep_once()
    assert [one.session_id for one in result.damaged] == [ill.id]
    assert damage.message in result.damaged[0].flaws
    assert any(damage.message in record.getMessage() for record in caplog.records)
    assert (start_ordered(ill), start_ordered(healthy)) == (False, True)
    row = report_rows(result)[str(ill.id)]
    assert (row["rule"], row["agent_action"]) == ("damaged_row", "none")
    assert damage.message in row["error_message"]


@EVERY_DAMAGE
def test_start_of_a_damaged_session_is_settled_and_the_other_runs(damage: Damage, runtime: RecordingRuntime) -> None:
    ill, healthy = pair(runtime, damage)
    for session in (ill, healthy):
        Intent.objects.create(session=session, kind="start", payload={"mode": "auto"})

    async def run_both_intents(registry: ExecutionRegistry) -> None:
        dispatcher = Dispatcher(registry)
        await dispatcher.wake_pending()
        await dispatcher.wait_until_idle()
        await dispatcher.close()

    with_registry(run_both_intents)
    outcomes = dict(Intent.objects.filter(kind="start", outcome__gt="").values_list("session_id", "outcome"))
    assert outcomes[ill.id] in ("damaged_row", "stopped", "fresh")
    assert outcomes[healthy.id] == "launch_failed"
    assert prompt_states(ill) == {"p1": "queued"}


@EVERY_DAMAGE
def test_damaged_session_sends_no_prompt_to_its_agent(damage: Damage) -> None:
    session = running_session(execution=NO_LEASE)
    Prompt.objects.create(session=session, message_id="p1", text="do it")

    async def look(registry: ExecutionRegistry) -> None:
        assert await registry.open_stream(session.id) is not None
        await registry.database(damage.do, session)
        await send_next_prompt(registry, session.id)

    with recording_agentctl(session) as agentctl:
        with_registry(look)
        assert agentctl.prompts == []
    assert prompt_states(session) == {"p1": "queued"}


@pytest.mark.parametrize(
    "date",
    [
        of_execution(last_seen_at=FAR_FUTURE),
        of_execution(owner="somebody", lease_expires_at=FAR_FUTURE),
        of_session(next_restart_at=FAR_FUTURE),
        of_session(ready_since=FAR_FUTURE),
        lambda session: Prompt.objects.filter(session=session).update(created_at=FAR_FUTURE) and None,
    ],
    ids=["last seen", "lease", "next restart", "ready since", "requested"],
)
def test_timestamps_in_the_future_delay_nothing(date: Callable[[TaskSession], None], runtime: RecordingRuntime) -> None:
    session = running_session(runtime=runtime.name, execution=NO_LEASE)
    Prompt.objects.create(session=session, message_id="p1", text="do it")
    date(session)
    sweep_once()
    assert start_ordered(session)


def test_start_with_a_future_timestamp_is_overdue(runtime: RecordingRuntime) -> None:
    session = running_session(runtime=runtime.name, execution={**NO_LEASE, "status": "starting"}, launch_id="")
    change(execution_of(session), updated_at=FAR_FUTURE)
    sweep_once()
    assert start_ordered(session)


@pytest.mark.embedded
def test_unreadable_column_affects_no_other_row(runtime: RecordingRuntime) -> None:
    ill, healthy = pair(
        runtime, Damage("no moment", raw("executors_running", "last_seen_at", "2026-13-45 00:00:00"), "")
    )
    result = sweep_once()
    assert [one.session_id for one in result.damaged] == [ill.id]
    assert start_ordered(healthy)


@pytest.mark.parametrize("payload", ["[]", '"auto"', "null", "7"])
@pytest.mark.parametrize("kind", ["start", "answer", "cancel", "stop", "close"])
def test_malformed_intent_is_settled_and_blocks_nothing(kind: str, payload: str, runtime: RecordingRuntime) -> None:
    session = running_session(runtime=runtime.name, execution=NO_LEASE, launch_id="")
    Intent.objects.create(session=session, kind=kind)
    raw("session_intents", "payload", payload)(session)

    async def run_intents(registry: ExecutionRegistry) -> None:
        dispatcher = Dispatcher(registry)
        await dispatcher.wake_pending()
        await dispatcher.wait_until_idle()
        await dispatcher.close()

    with_registry(run_intents)
    assert not Intent.objects.filter(kind=kind, done_at=None).exists()


def test_boot_sweeps_store_damage_each_time_but_log_it_once(
    runtime: RecordingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    ill, _ = pair(runtime, DAMAGES[0])

    async def sweep_twice(registry: ExecutionRegistry) -> None:
        for _ in range(2):
            result = await run_sweep(registry, SweepScope("boot"), set())
            document = await registry.database(sweep_pass.build_report, result, "boot")
            await registry.database(sweep_pass.store_sweep, document, result)

    with caplog.at_level(logging.ERROR, logger="sessions_app.recovery.sweep.sweep_pass"):
        with_registry(sweep_twice)
    assert SweepOutcome.objects.filter(session=ill, rule="damaged_row").count() == 2
    assert len([record for record in caplog.records if str(ill.id) in record.getMessage()]) == 1


def test_invalid_value_is_kept_when_another_column_is_saved() -> None:
    session = running_session()
    raw("task_sessions", "metadata", "[1, 2]")(session)
    row = fresh(session)
    row.error_message = "x"
    row.save()
    with connection.cursor() as cursor:
        cursor.execute("SELECT metadata FROM task_sessions")
        assert [str(one).replace(" ", "") for (one,) in cursor.fetchall()] == ["[1,2]"]


def test_start_with_a_damaged_row_launches_nothing(runtime: RecordingRuntime) -> None:
    ill, _ = pair(runtime, DAMAGES[-2])
    order = Intent.objects.create(session=ill, kind="start", payload={"mode": "auto"})
    with_registry(lambda registry: execute_start(registry, ill.id, order.id))
    assert Intent.objects.get(id=order.id).outcome == "damaged_row"
