"""Cron and idle triggers: one run per slot with any number of workers, and one run for all missed slots."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone
from django.utils.module_loading import import_string
from django_q.models import Schedule

from sessions_app.models import Run
from sessions_app.tasks import schedules
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.services import runs
from sessions_app.workflows.services.runs import start_due_runs
from sessions_app.workflows.services.workflows import archive_workflow, save_workflow
from tests.api.world import World, make_world
from tests.workflows.workflow_builder import node, workflow

pytestmark = pytest.mark.django_db
NOON = datetime(2031, 3, 1, 12, tzinfo=UTC)
CRON = '{triggerType: cron, cron: "0 * * * *"}'
IDLE = "{triggerType: idle, idleMinutes: 30}"


@pytest.fixture
def world(db: None) -> World:
    return make_world()


def triggered(world: World, data: str, name: str = "By itself") -> Workflow:
    text = f"{{version: 3, metadata: {{name: x}}, nodes: [{{id: one, type: trigger, data: {data}}}], edges: []}}"
    given = {"team": world.team, "name": name, "text": text, "triggers_enabled": True}
    return save_workflow(world.member, given)[0]


def due_at(workflow: Workflow, at: datetime | None) -> Workflow:
    Workflow.objects.filter(id=workflow.id).update(next_run_at=at)
    workflow.refresh_from_db()
    return workflow


def end_all(at: datetime) -> None:
    WorkflowRun.objects.update(state="succeeded", ended_at=at)


def test_saving_computes_the_next_scheduled_time(world: World) -> None:
    workflow = triggered(world, CRON)
    assert workflow.next_run_at is not None
    assert timedelta(0) < workflow.next_run_at - timezone.now() <= timedelta(hours=1)
    assert save_workflow(world.member, {"triggers_enabled": False}, workflow)[0].next_run_at is None


def test_slot_starts_one_run(world: World) -> None:
    workflow = due_at(triggered(world, CRON), NOON)
    assert start_due_runs(NOON - timedelta(seconds=1)) == 0
    assert start_due_runs(NOON + timedelta(seconds=1)) == 1
    assert start_due_runs(NOON + timedelta(seconds=2)) == 0
    run = WorkflowRun.objects.get()
    assert (run.trigger, run.started_by, run.workflow_id) == ("cron", world.member, workflow.id)
    assert (run.inputs["type"], run.inputs["timestamp"]) == ("cron", NOON.isoformat())
    workflow.refresh_from_db()
    assert workflow.next_run_at == NOON + timedelta(hours=1)


def test_two_workers_start_one_run_for_a_slot(world: World) -> None:
    workflow = due_at(triggered(world, CRON), NOON)
    seen = list(Workflow.objects.filter(id=workflow.id)) * 2
    begun = [runs._start_if_due(one, NOON) for one in seen]
    assert begun == [True, False]
    assert WorkflowRun.objects.count() == 1


def test_worker_crash_before_next_slot_starts_no_second_run(world: World) -> None:
    workflow = due_at(triggered(world, CRON), NOON)
    start_due_runs(NOON)
    due_at(workflow, NOON)
    end_all(NOON)
    assert start_due_runs(NOON + timedelta(minutes=1)) == 0
    assert WorkflowRun.objects.count() == 1


def test_missed_slots_start_one_run(world: World) -> None:
    workflow = due_at(triggered(world, CRON), NOON)
    back = NOON + timedelta(hours=7, minutes=30)
    assert (start_due_runs(back), start_due_runs(back)) == (1, 0)
    workflow.refresh_from_db()
    assert workflow.next_run_at == NOON + timedelta(hours=8)


def test_slot_is_skipped_while_previous_run_is_active(world: World) -> None:
    workflow = due_at(triggered(world, CRON), NOON)
    assert start_due_runs(NOON) == 1
    assert start_due_runs(NOON + timedelta(hours=1)) == 0
    workflow.refresh_from_db()
    assert workflow.next_run_at == NOON + timedelta(hours=2)
    end_all(NOON)
    assert start_due_runs(NOON + timedelta(hours=2)) == 1


@pytest.mark.parametrize("change", [{"triggers_enabled": False}, {"is_valid": False}, "archived"])
def test_disabled_invalid_or_archived_workflow_is_not_started(world: World, change: dict[str, bool] | str) -> None:
    workflow = due_at(triggered(world, CRON), NOON)
    if isinstance(change, dict):
        Workflow.objects.update(**change)
    else:
        archive_workflow(world.member, workflow)
    assert start_due_runs(NOON) == 0


def test_failed_trigger_is_reported_and_tried_at_next_slot(world: World, caplog: pytest.LogCaptureFixture) -> None:
    text = workflow([node("one", "trigger", triggerType="cron", cron="0 * * * *"), node("coder", "agent", prompt="Go")])
    given = {"team": world.team, "name": "Without a repository", "text": text, "triggers_enabled": True}
    row = due_at(save_workflow(world.member, given)[0], NOON)
    with caplog.at_level(logging.WARNING):
        assert start_due_runs(NOON) == 0
    row.refresh_from_db()
    assert "Choose a repository" in row.trigger_error
    assert (row.triggers_enabled, row.next_run_at) == (True, NOON + timedelta(hours=1))


def test_idle_trigger_starts_one_run_after_its_time(world: World) -> None:
    workflow = triggered(world, IDLE)
    Workflow.objects.update(updated_at=NOON)
    assert start_due_runs(NOON + timedelta(minutes=29)) == 0
    assert start_due_runs(NOON + timedelta(minutes=30)) == 1
    assert start_due_runs(NOON + timedelta(minutes=90)) == 0, "the run that it started is still active"
    end_all(NOON + timedelta(minutes=100))
    assert start_due_runs(NOON + timedelta(minutes=129)) == 0
    assert start_due_runs(NOON + timedelta(minutes=130)) == 1
    assert set(WorkflowRun.objects.values_list("trigger", "workflow")) == {("idle", workflow.id)}


@pytest.mark.parametrize(("ended", "started"), [(None, 0), (NOON + timedelta(minutes=10), 0), (NOON, 1)])
def test_active_turn_of_team_prevents_idle_trigger(world: World, ended: datetime | None, started: int) -> None:
    triggered(world, IDLE)
    Workflow.objects.update(updated_at=NOON)
    state = "completed" if ended else "running"
    Run.objects.create(session=world.session, message_id="m", state=state, started_at=NOON, ended_at=ended)
    assert start_due_runs(NOON + timedelta(minutes=35)) == started


def test_two_idle_triggers_start_one_run(world: World) -> None:
    triggered(world, IDLE)
    triggered(world, IDLE, "Another")
    Workflow.objects.update(updated_at=NOON)
    assert start_due_runs(NOON + timedelta(hours=1)) == 1


def test_worker_checks_triggers_every_minute(world: World) -> None:
    Schedule.objects.filter(name="workflows").delete()
    schedules.ensure_schedules()
    made = Schedule.objects.get(name="workflows")
    assert (made.schedule_type, made.minutes) == (Schedule.MINUTES, 1)
    assert made.next_run - timezone.now() < timedelta(minutes=1)
    due_at(triggered(world, CRON), timezone.now() - timedelta(hours=3))
    assert import_string(made.func)() == 1
