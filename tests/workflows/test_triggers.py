"""Cron and idle triggers: one run per slot with any number of workers, and one run for all missed slots."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pydoc import locate
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from django.utils import timezone
from django_q.models import Schedule

from sessions_app.kernel.services.errors import ChecksUnavailable, Conflict
from sessions_app.models import Turn
from sessions_app.worker import schedules
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.nodes.trigger import (
    MAX_COUNTED_SLOTS,
    Cron,
    WorkflowTriggers,
    find_due_slots,
    find_triggers,
    parse_cron,
)
from sessions_app.workflows.services import loading, runs
from sessions_app.workflows.services import schedules as run_schedules
from sessions_app.workflows.services.run_records import graph_of
from sessions_app.workflows.services.schedules import start_due_runs
from sessions_app.workflows.services.trigger_confirmation import current_parts, parse_triggers, serialize_parts
from sessions_app.workflows.services.trigger_settings import confirm_triggers, triggers_document
from sessions_app.workflows.services.workflows import archive_workflow, save_workflow
from tests.api.world import World, client_of, make_world
from tests.hosts.processes import reported
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
    begun = [run_schedules._start_if_due(one, NOON) for one in seen]
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


@pytest.mark.parametrize(
    ("back", "catches_up", "runs", "missed"),
    [
        # Hours after noon, whether one run makes up, the slots of the runs, how many were missed and until when.
        (0.1, True, [0], None),
        (0.5, True, [0], (1, 0)),
        (7.5, True, [0], (8, 7)),
        (7.1, True, [0], (7, 6)),
        (0.1, False, [0], None),
        (0.5, False, [], (1, 0)),
        (7.5, False, [], (8, 7)),
        (7.1, False, [7], (7, 6)),
    ],
)
def test_missed_slots_are_made_up_for_once_and_told(
    world: World, settings: Any, back: float, catches_up: bool, runs: list[int], missed: tuple[int, int] | None
) -> None:
    settings.KANDEV_MISSED_SCHEDULES = "once" if catches_up else "skip"
    workflow = due_at(triggered(world, CRON), NOON)
    now = NOON + timedelta(hours=back)

    assert [start_due_runs(now) for _ in range(3)] == [len(runs), 0, 0]

    started = [run.inputs["timestamp"] for run in WorkflowRun.objects.all()]
    assert started == [(NOON + timedelta(hours=hours)).isoformat() for hours in runs]
    workflow.refresh_from_db()
    assert workflow.next_run_at == NOON + timedelta(hours=int(back) + 1)
    if missed is None:
        assert (workflow.missed_count, workflow.missed_from) == (0, None)
        return
    count, until = missed
    told = (workflow.missed_count, workflow.missed_from, workflow.missed_until)
    assert told == (count, NOON, NOON + timedelta(hours=until))
    made_up = WorkflowRun.objects.first() if catches_up else None
    assert workflow.missed_run == made_up
    assert workflow.missed_outcome == ("made_up" if catches_up else "skipped")


def test_missed_slots_are_told_though_no_run_makes_up_for_them_beside_an_active_one(world: World) -> None:
    workflow = due_at(triggered(world, CRON), NOON)
    start_due_runs(NOON)
    assert start_due_runs(NOON + timedelta(hours=3, minutes=30)) == 0
    workflow.refresh_from_db()
    assert (workflow.missed_count, workflow.missed_run) == (3, None)


def test_crash_after_the_run_that_makes_up_tells_the_same(world: World) -> None:
    workflow = due_at(triggered(world, CRON), NOON)
    back = NOON + timedelta(hours=3, minutes=30)
    start_due_runs(back)
    due_at(workflow, NOON)
    assert start_due_runs(back + timedelta(minutes=1)) == 0
    workflow.refresh_from_db()
    assert (workflow.missed_count, workflow.missed_run) == (4, WorkflowRun.objects.get())


def told_of(workflow: Workflow) -> tuple[int, str]:
    workflow.refresh_from_db()
    return workflow.missed_count, workflow.missed_outcome


def test_run_that_makes_up_and_what_is_told_of_it_are_one_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = due_at(triggered(world, CRON), NOON)
    back = NOON + timedelta(hours=3, minutes=30)

    def crash(*args: Any) -> None:
        raise OperationalError("the database is gone")

    with monkeypatch.context() as patched:
        patched.setattr(run_schedules, "_move_on", crash)
        with pytest.raises(OperationalError):
            start_due_runs(back)
    assert not WorkflowRun.objects.exists()
    assert told_of(workflow) == (0, "")
    assert start_due_runs(back + timedelta(hours=1)) == 1
    assert told_of(workflow) == (5, "made_up")


@pytest.mark.parametrize(
    ("setting", "is_active", "outcome"),
    [("once", False, "made_up"), ("skip", False, "skipped"), ("once", True, "run_active")],
)
def test_page_says_what_became_of_missed_slots(
    world: World, settings: Any, setting: str, is_active: bool, outcome: str
) -> None:
    settings.KANDEV_MISSED_SCHEDULES = setting
    workflow = due_at(triggered(world, CRON), NOON)
    if is_active:
        start_due_runs(NOON)
    start_due_runs(NOON + timedelta(hours=7, minutes=30))
    assert told_of(workflow)[1] == outcome
    assert SENTENCES[outcome] in page_of(world, workflow)


SENTENCES = {
    "made_up": "One run</a> made up for them: it has the time of the first one.",
    "skipped": "No run made up for them: this installation skips missed runs",
    "run_active": "No run made up for them: the run before was still active.",
}


def page_of(world: World, workflow: Workflow) -> str:
    client = Client()
    client.force_login(world.member)
    return " ".join(client.get(f"/workflows/{workflow.id}/").content.decode().split())


def test_deleted_run_is_not_told_as_none(world: World) -> None:
    workflow = due_at(triggered(world, CRON), NOON)
    start_due_runs(NOON + timedelta(hours=7, minutes=30))
    WorkflowRun.objects.all().delete()
    assert "One run made up for them, which was deleted since." in page_of(world, workflow)


def test_run_that_cannot_start_is_told(world: World) -> None:
    workflow = due_at(triggered(world, CRON), NOON)
    with pytest.MonkeyPatch.context() as patched:

        def refuse(*args: Any, **values: Any) -> None:
            raise Conflict("The team has no executor.")

        patched.setattr(run_schedules, "start_saved_run", refuse)
        assert start_due_runs(NOON + timedelta(hours=2, minutes=30)) == 0
    assert told_of(workflow) == (3, "not_started")
    assert "could not start" in page_of(world, workflow)


@pytest.fixture
def half_past_three(monkeypatch: pytest.MonkeyPatch) -> datetime:
    """Stop the clock three and a half hours after noon: of an hourly schedule, four slots have come since noon."""
    now = NOON + timedelta(hours=3, minutes=30)
    monkeypatch.setattr(timezone, "now", lambda: now)
    return now


def change_schedule(world: World, workflow: Workflow) -> Workflow:
    return save_workflow(world.member, {"text": workflow.text.replace("0 * * * *", "30 * * * *")}, workflow)[0]


def switch_off(world: World, workflow: Workflow) -> Workflow:
    return save_workflow(world.member, {"triggers_enabled": False}, workflow)[0]


def archive(world: World, workflow: Workflow) -> Workflow:
    return archive_workflow(world.member, workflow)


@pytest.mark.usefixtures("half_past_three")
@pytest.mark.parametrize("drop", [change_schedule, switch_off, archive])
def test_due_slots_are_told_when_nothing_starts_them_any_more(
    world: World, drop: Callable[[World, Workflow], Workflow]
) -> None:
    workflow = drop(world, due_at(triggered(world, CRON), NOON))
    assert told_of(workflow) == (4, "schedule_changed")
    assert (workflow.missed_from, workflow.missed_until) == (NOON, NOON + timedelta(hours=3))
    assert workflow.missed_run is None
    assert workflow.next_run_at is None


def test_end_of_more_due_slots_than_are_counted_is_the_time_at_which_they_are_dropped(
    world: World, half_past_three: datetime
) -> None:
    due = half_past_three - timedelta(days=30)
    workflow = due_at(triggered(world, '{triggerType: cron, cron: "* * * * *"}'), due)
    workflow = switch_off(world, workflow)
    told = (workflow.missed_count, workflow.missed_from, workflow.missed_until)
    assert told == (MAX_COUNTED_SLOTS, due, half_past_three)


@pytest.mark.usefixtures("half_past_three")
def test_schedule_that_was_off_has_missed_nothing(world: World) -> None:
    workflow = switch_off(world, triggered(world, CRON))
    workflow, _ = save_workflow(world.member, {"triggers_enabled": True}, workflow)
    assert workflow.next_run_at == NOON + timedelta(hours=4)
    assert told_of(workflow) == (0, "")


def save_description(world: World, workflow: Workflow) -> Workflow:
    return save_workflow(world.member, {"description": "Every hour"}, workflow)[0]


def confirm_again(world: World, workflow: Workflow) -> Workflow:
    fingerprint = triggers_document(world.member, workflow)["fingerprint"]
    return confirm_triggers(world.member, workflow, fingerprint)


@pytest.mark.parametrize("keep", [save_description, confirm_again])
def test_due_slot_stays_due_if_nothing_changes_of_the_schedule(
    world: World, half_past_three: datetime, keep: Callable[[World, Workflow], Workflow]
) -> None:
    workflow = keep(world, due_at(triggered(world, CRON), NOON))
    assert workflow.next_run_at == NOON
    assert told_of(workflow) == (0, "")
    assert start_due_runs(half_past_three) == 1


def test_clock_that_is_set_back_starts_the_schedule_again_and_no_slot_twice(world: World) -> None:
    workflow = due_at(triggered(world, CRON), NOON)
    assert start_due_runs(NOON) == 1
    end_all(NOON)
    due_at(workflow, NOON + timedelta(days=3650))  # computed by a clock that was wrong
    before = NOON - timedelta(hours=1, minutes=30)
    assert start_due_runs(before) == 0
    workflow.refresh_from_db()
    assert workflow.next_run_at == NOON - timedelta(hours=1)
    assert start_due_runs(NOON - timedelta(hours=1)) == 1
    end_all(NOON)
    assert start_due_runs(NOON + timedelta(minutes=1)) == 0
    assert WorkflowRun.objects.count() == 2


def test_clock_that_is_a_little_behind_changes_nothing(world: World) -> None:
    workflow = due_at(triggered(world, CRON), NOON + timedelta(hours=1))
    assert start_due_runs(NOON - timedelta(minutes=5)) == 0
    workflow.refresh_from_db()
    assert workflow.next_run_at == NOON + timedelta(hours=1)


def test_counting_missed_slots_is_bounded(world: World) -> None:
    workflow = due_at(triggered(world, '{triggerType: cron, cron: "* * * * *"}'), NOON)
    back = NOON + timedelta(days=30)
    assert start_due_runs(back) == 1
    workflow.refresh_from_db()
    assert (workflow.missed_count, workflow.missed_from, workflow.missed_until) == (1000, NOON, back)


def test_page_and_api_tell_of_missed_slots(world: World) -> None:
    workflow = due_at(triggered(world, CRON), NOON)
    start_due_runs(NOON + timedelta(hours=7, minutes=30))
    run = WorkflowRun.objects.get()
    client = Client()
    client.force_login(world.member)
    page = " ".join(client.get(f"/workflows/{workflow.id}/").content.decode().split())
    assert "8 scheduled runs were missed, from <time" in page
    assert (
        f'<a href="/workflows/runs/{run.id}/">One run</a> made up for them: it has the time of the first one.' in page
    )
    shown = client_of(world.member).get(f"/api/v1/workflows/{workflow.id}/").json()
    assert (shown["missed_count"], shown["missed_run"]) == (8, str(run.id))


@pytest.mark.parametrize(
    ("policy", "catch_up"), [("once", "One run then makes up for those"), ("skip", "Those that were missed are then")]
)
def test_page_and_api_name_a_missing_worker(world: World, settings: Any, policy: str, catch_up: str) -> None:
    settings.KANDEV_MISSED_SCHEDULES = policy
    scheduled, by_hand = triggered(world, CRON), triggered(world, CRON, "By hand")
    Workflow.objects.filter(id=scheduled.id).update(trigger_error="The repository is gone.")
    save_workflow(world.member, {"triggers_enabled": False}, by_hand)
    last = reported("worker", 600)
    api, browser = client_of(world.member), Client()
    browser.force_login(world.member)

    error = api.get(f"/api/v1/workflows/{scheduled.id}/").json()["trigger_error"]
    page = browser.get(f"/workflows/{scheduled.id}/").content.decode()

    expected = f"No worker is running; the last one reported on {last.beat_at:%Y-%m-%d at %H:%M} UTC."
    assert error.startswith(expected)
    assert f"start manage.py qcluster, or ask an administrator to. {catch_up}" in error
    assert error.endswith("The repository is gone.")
    assert expected in page
    assert "The repository is gone." in page
    assert "Open System" not in page
    listed = {row["id"]: row["trigger_error"] for row in api.get("/api/v1/workflows/").json()["results"]}
    assert listed == {str(scheduled.id): error, str(by_hand.id): ""}
    assert "No worker" not in browser.get(f"/workflows/{by_hand.id}/").content.decode()

    reported("worker", 0)
    assert api.get(f"/api/v1/workflows/{scheduled.id}/").json()["trigger_error"] == "The repository is gone."
    assert "No worker" not in browser.get(f"/workflows/{scheduled.id}/").content.decode()


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
    given = {"team": world.team, "name": "Without a repository", "text": text, "repository": world.repository}
    row = due_at(save_workflow(world.member, {**given, "triggers_enabled": True})[0], NOON)
    # As if a schedule with this obstacle had been confirmed, which nobody can do today.
    row.repository = None
    row.confirmed = serialize_parts(current_parts(row, graph_of(row.text, row.files)))
    row.save(update_fields=["repository", "confirmed"])
    with caplog.at_level(logging.WARNING):
        assert start_due_runs(NOON) == 0
    row.refresh_from_db()
    assert "Choose a repository" in row.trigger_error
    assert (row.triggers_enabled, row.next_run_at) == (True, NOON + timedelta(hours=1))


def test_trigger_that_fails_unexpectedly_is_reported_until_it_starts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = due_at(triggered(world, CRON), NOON)
    other = due_at(triggered(world, CRON, "Another"), NOON + timedelta(seconds=1))

    def start_or_fail(by: Any, started: Workflow, *args: Any, **values: Any) -> Any:
        if started.pk == row.pk:
            raise RuntimeError("private words")
        return runs.start_saved_run(by, started, *args, **values)

    with monkeypatch.context() as patch:
        patch.setattr(run_schedules, "start_saved_run", start_or_fail)
        assert start_due_runs(NOON + timedelta(seconds=1)) == 1
    row.refresh_from_db()
    assert row.trigger_error.startswith("An unexpected error occurred (RuntimeError).")
    assert row.next_run_at == NOON
    assert Workflow.objects.get(pk=other.pk).trigger_error == ""
    assert start_due_runs(NOON + timedelta(seconds=1)) == 1
    row.refresh_from_db()
    assert row.trigger_error == ""


def test_slot_whose_checks_are_unavailable_stays_due(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    due = due_at(triggered(world, CRON), NOON)

    def be_busy(*arguments: Any) -> Any:
        raise ChecksUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(runs, "load_text", be_busy)
        assert start_due_runs(NOON) == 0
    due.refresh_from_db()
    assert due.next_run_at == NOON
    assert start_due_runs(NOON + timedelta(minutes=1)) == 1
    assert WorkflowRun.objects.get().inputs["timestamp"] == NOON.isoformat()


def test_workflow_whose_triggers_fail_stops_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = due_at(triggered(world, CRON, "Broken"), NOON - timedelta(hours=1))
    intact = due_at(triggered(world, CRON, "Intact"), NOON)

    def triggers_of(row: Workflow) -> Any:
        if row.id == broken.id:
            raise TypeError("a damaged row")
        return find_triggers(loading.load_text(row.text, row.files).workflow)

    monkeypatch.setattr(run_schedules, "_triggers_of", triggers_of)
    assert start_due_runs(NOON) == 1
    assert WorkflowRun.objects.get().workflow_id == intact.id


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
    Turn.objects.create(session=world.session, message_id="m", state=state, started_at=NOON, ended_at=ended)
    assert start_due_runs(NOON + timedelta(minutes=35)) == started


def test_two_idle_triggers_start_one_run(world: World) -> None:
    triggered(world, IDLE)
    triggered(world, IDLE, "Another")
    Workflow.objects.update(updated_at=NOON)
    assert start_due_runs(NOON + timedelta(hours=1)) == 1


def test_text_is_loaded_only_when_its_trigger_is_due(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = list[str]()

    def load_text(text: str, *arguments: Any) -> Any:
        loaded.append(text)
        return loading.load_text(text, *arguments)

    due = due_at(triggered(world, CRON, "Due"), NOON)
    due_at(triggered(world, CRON, "Later"), NOON + timedelta(hours=1))
    triggered(world, IDLE, "Idle")
    Workflow.objects.update(updated_at=NOON)
    monkeypatch.setattr(runs, "load_text", load_text)
    assert start_due_runs(NOON + timedelta(minutes=1)) == 1
    assert loaded == [due.text]


def test_workflows_of_one_team_take_no_time_from_other_teams(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_schedules, "TEAM_SECONDS", 0.0)
    for number in range(3):
        due_at(triggered(world, CRON, f"Costly {number}"), NOON - timedelta(hours=1))
    given = {"team": world.stranger.groups.get(), "name": "Of another team", "triggers_enabled": True}
    text = workflow([node("one", "trigger", triggerType="cron", cron="0 * * * *")])
    stranger = due_at(save_workflow(world.stranger, {**given, "text": text})[0], NOON)
    assert start_due_runs(NOON) == 2
    assert WorkflowRun.objects.filter(workflow=stranger).exists()
    end_all(NOON)
    assert start_due_runs(NOON) == 1, "the team's next one follows in the next pass"


@pytest.mark.parametrize("cron", ["0 0 1 1 *", "@daily", "*/5 * * * MON-FRI"])
def test_confirmed_triggers_are_those_of_the_text(world: World, cron: str) -> None:
    nodes = [
        node("one", "trigger", triggerType="cron", cron=cron),
        node("two", "trigger", triggerType="idle", idleMinutes=7),
    ]
    graph = graph_of(workflow(nodes), {})
    assert graph is not None
    row = triggered(world, CRON)
    assert parse_triggers(current_parts(row, graph)["triggers"]) == find_triggers(graph)


@pytest.mark.parametrize("text", ["cron: 0 0\n* * *", "cron: None", "idle: None minutes", "other"])
def test_confirmed_triggers_that_cannot_be_read_are_taken_from_the_text(world: World, text: str) -> None:
    assert parse_triggers(text) is None
    row = due_at(triggered(world, CRON), NOON)
    vars(row)["confirmed_triggers"] = text
    assert run_schedules._triggers_of(row).crons


def test_worker_checks_triggers_every_minute(world: World) -> None:
    Schedule.objects.filter(name="workflows").delete()
    schedules.ensure_schedules()
    made = Schedule.objects.get(name="workflows")
    assert (made.schedule_type, made.minutes) == (Schedule.MINUTES, 1)
    assert made.next_run - timezone.now() < timedelta(minutes=1)
    due_at(triggered(world, CRON), timezone.now() - timedelta(hours=3))
    start_due = locate(made.func)  # as the worker does
    assert callable(start_due)
    assert start_due() == 1


def test_rare_slots_are_searched_once_beside_many_that_were_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    rare, dense, searched = parse_cron("0 0 30 2 *"), parse_cron("* * * * *"), []
    search = Cron.next_after

    def note_search(cron: Cron, moment: datetime) -> datetime | None:
        searched.append(cron)
        return search(cron, moment)

    monkeypatch.setattr(Cron, "next_after", note_search)
    first = datetime(2026, 1, 31, 12, tzinfo=UTC)

    slots = find_due_slots(WorkflowTriggers((rare, dense, dense)), first, first + timedelta(days=2))

    assert (slots.count, searched.count(rare)) == (MAX_COUNTED_SLOTS, 1)
    assert slots.last == first + timedelta(minutes=MAX_COUNTED_SLOTS - 1)
