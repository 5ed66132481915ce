"""Any number of sessions may need a start; a limited number start at a time, in a fair order, and the rest wait."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.utils import timezone

from executors_app import capacity
from executors_app.models import Executor
from sessions_app.board.services import tasks
from sessions_app.models import Intent, Prompt, TaskSession
from sessions_app.prompts import services as prompts
from sessions_app.recovery.rules.recovery import explain_decision
from sessions_app.recovery.sweep.sweep_pass import SweepRun, SweepScope, run_sweep
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.status import session_status
from sessions_app.starts import admission, claims
from sessions_app.starts.admission import StartSlots
from sessions_app.starts.jobs import start_queued_sessions
from sessions_app.supervisor.execution_registry import ExecutionRegistry, GracePeriod, IgnoreNews
from sessions_app.supervisor.loop import SupervisorLoop
from tests.supervisor import database_dump
from tests.supervisor.recording_runtime import RecordingRuntime, lost_session, sweep_once, with_registry
from tests.supervisor.rows import (
    MINE,
    NO_LEASE,
    change,
    execution_of,
    fresh,
    last_payload,
    make_session,
    make_task,
    make_user,
    names,
    running_session,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _small_limits(settings: Any) -> None:
    """Set limits that are low enough for a test to reach."""
    settings.KANDEV_MAX_STARTS_PER_PASS = 2


def lost_sessions(runtime: RecordingRuntime, number: int = 1, **fields: Any) -> list[TaskSession]:
    """Return sessions that claim to run although no agentctl is there."""
    return [lost_session(runtime, **fields) for _ in range(number)]


def of_team(runtime: RecordingRuntime, name: str, number: int) -> list[TaskSession]:
    """Return lost sessions of a new team."""
    team, user = Group.objects.create(name=name), User.objects.create_user(name)
    user.groups.add(team)
    task = tasks.create_task(user, {"title": name, "team": team})
    return lost_sessions(runtime, number, task=change(task, repository=make_task().repository), owner=user)


def ordered_sessions() -> set[Any]:
    """Return the ids of sessions whose start is ordered."""
    return set(Intent.objects.filter(kind="start", done_at=None).values_list("session_id", flat=True))


def waiting() -> dict[Any, int]:
    """Return the places in the start queue, by session id."""
    rows = TaskSession.objects.filter(start_rank__isnull=False).values_list("id", "start_rank")
    return {key: rank for key, rank in rows if rank is not None}


def settle_starts(*sessions: TaskSession) -> None:
    """Record that the starts of these sessions, or of all, succeeded and their agents have exited since."""
    orders = Intent.objects.filter(kind="start", done_at=None)
    if sessions:
        orders = orders.filter(session__in=sessions)
    orders.update(done_at=timezone.now(), outcome="loaded")


def admit(boot_id: str = "") -> SweepRun | None:
    """Run one admission pass of a supervisor."""

    async def run() -> SweepRun | None:
        supervisor = SupervisorLoop()
        supervisor.registry.boot_id = boot_id or supervisor.registry.boot_id
        supervisor.registry.listener = IgnoreNews()  # ordered starts are not carried out here
        try:
            return await start_queued_sessions(supervisor)
        finally:
            await supervisor.close()

    return asyncio.run(run())


def test_sweep_orders_a_limited_number_of_starts_and_queues_the_rest(runtime: RecordingRuntime) -> None:
    sessions = lost_sessions(runtime, 5)
    sweep_once()
    assert len(ordered_sessions()) == 2
    assert len(waiting()) == 3
    for session in sessions:
        event_names = names(session)
        assert ("session.start_waits" in event_names) == (session.id in waiting())
        assert ("session.restart_ordered" in event_names) == (session.id in ordered_sessions())
        assert fresh(session).launch_id == "", "the death is recorded at once"


def test_second_sweep_orders_nothing_more_and_keeps_the_queue_order(runtime: RecordingRuntime) -> None:
    lost_sessions(runtime, 5)

    async def sweep_twice(registry: ExecutionRegistry) -> None:
        await run_sweep(registry, SweepScope("boot"), set())
        before.update(await registry.database(waiting))
        await run_sweep(registry, SweepScope("reconcile"), set())

    before: dict[Any, int] = {}
    with_registry(sweep_twice)
    assert len(ordered_sessions()) == 2
    assert waiting() == before


def test_concurrent_sweeps_share_the_start_limit(runtime: RecordingRuntime) -> None:
    first, second = lost_sessions(runtime, 4), lost_sessions(runtime, 4)

    async def sweep_concurrently(registry: ExecutionRegistry) -> None:
        halves = ([one.id for one in half] for half in (first, second))
        await asyncio.gather(*(run_sweep(registry, SweepScope("reconcile", sessions=half), set()) for half in halves))

    with_registry(sweep_concurrently)
    assert 1 <= len(ordered_sessions()) <= 2
    assert len(ordered_sessions()) + len(waiting()) == 8


def test_queued_starts_are_admitted_until_the_queue_is_empty(runtime: RecordingRuntime) -> None:
    sessions = lost_sessions(runtime, 5)
    sweep_once()
    seen = ordered_sessions()
    for _ in range(2):
        settle_starts()
        assert admit() is not None
        seen |= ordered_sessions()
    settle_starts()
    assert seen == {session.id for session in sessions}
    assert not waiting()
    assert admit() is None


def test_nothing_is_admitted_while_the_start_limit_is_used_up(runtime: RecordingRuntime) -> None:
    lost_sessions(runtime, 5)
    sweep_once()
    started = [TaskSession.objects.get(id=key) for key in ordered_sessions()]
    for session in started:
        change(execution_of(session), owner="me", lease_expires_at=timezone.now() + timedelta(minutes=1))
    assert admission.load_next_starts("me", StartSlots()) == []
    settle_starts(started[0])
    assert len(admission.load_next_starts("me", StartSlots())) == 1


def test_sessions_with_interrupted_work_start_first(runtime: RecordingRuntime) -> None:
    calm, requested = lost_sessions(runtime, 4), lost_sessions(runtime, 2)
    for session in requested:
        Prompt.objects.create(session=session, message_id="p1", text="do it")
    sweep_once()
    assert ordered_sessions() == {session.id for session in requested}
    assert waiting().keys() == {session.id for session in calm}


def test_team_with_one_session_does_not_wait_behind_a_large_team(runtime: RecordingRuntime) -> None:
    many = of_team(runtime, "many", 6)
    (one,) = of_team(runtime, "one", 1)
    sweep_once()
    assert one.id in ordered_sessions()
    assert sum(session.id in ordered_sessions() for session in many) == 1


def test_status_says_how_many_sessions_wait_ahead(runtime: RecordingRuntime) -> None:
    sessions = lost_sessions(runtime, 6)
    sweep_once()
    positions = sorted(
        session_status(fresh(session))["start_wait"]["before"] for session in sessions if session.id in waiting()
    )
    assert positions == [0, 1, 2, 3]
    started = [session for session in sessions if session.id in ordered_sessions()]
    assert [session_status(fresh(session))["start_wait"] for session in started] == [None, None]
    (last,) = [session for session in sessions if waiting().get(session.id) == max(waiting().values())]
    assert last_payload(last, "session.start_waits") == {"reason": "turn", "before": 3}


def test_dry_run_explains_the_queue_and_assigns_no_place(runtime: RecordingRuntime) -> None:
    lost_sessions(runtime, 4)
    before = database_dump.dump()
    result = sweep_once(SweepScope("command", dry_run=True))
    assert database_dump.dump() == before
    lines = [dict(explain_decision(item.facts, item.seen, item.decision))["next start"] for item in result.decided]
    assert sorted(lines) == [
        "at once",
        "at once",
        "waits for its turn: 0 before it (turn)",
        "waits for its turn: 1 before it (turn)",
    ]


def test_full_executor_does_not_delay_other_executors(runtime: RecordingRuntime, settings: Any) -> None:
    settings.KANDEV_MAX_STARTS_PER_PASS = 9
    small = lost_sessions(runtime, 3)
    Executor.objects.filter(name=runtime.name).update(max_live=1)
    sweep_once()
    assert len(ordered_sessions()) == 1
    waits = [session_status(fresh(one))["start_wait"] for one in small if one.id in waiting()]
    assert sorted(one["before"] for one in waits) == [0, 1]
    elsewhere = running_session(execution=NO_LEASE | {"agentctl_url": "unix:/nowhere/agentctl"})
    sweep_once()
    admit()
    assert elsewhere.id in ordered_sessions()
    assert len(waiting()) == 2


def test_starts_waiting_for_capacity_keep_their_order() -> None:
    running = running_session()
    first, second = make_session(), make_session()
    assert running.executor is not None
    change(running.executor, max_live=2)
    change(execution_of(first), owner=MINE.owner, generation=1)
    change(execution_of(second), owner=MINE.owner, generation=1)
    orders = {one.id: one.intents.get() for one in (first, second)}
    Intent.objects.filter(session=first).update(payload={"mode": "auto", "queued_for_capacity": True})
    assert claims.claim_start(second.id, orders[second.id].id, MINE.owner, running_launch_id=None) is None
    assert session_status(fresh(second))["start_wait"] == {"reason": "capacity", "before": 1, "host": "", "text": ""}
    assert claims.claim_start(first.id, orders[first.id].id, MINE.owner, running_launch_id=None) is not None
    assert session_status(fresh(second))["start_wait"] == {"reason": "capacity", "before": 0, "host": "", "text": ""}


@pytest.mark.parametrize(
    "ends",
    [
        lambda one: intents.request_stop(one.id, make_user()),
        lambda one: intents.request_close(one.id, make_user(), "completed"),
        lambda one: tasks.archive_task(one.task, make_user()),
        lambda one: tasks.finish_task(one.task, make_user()),
        lambda one: intents.request_resume(one.id, make_user()),
        lambda one: prompts.queue_prompt(one.id, "p1", "go on", make_user()),
    ],
    ids=["stop", "close", "archive", "done", "resume", "prompt"],
)
def test_session_leaves_the_queue_when_stopped_or_requested(runtime: RecordingRuntime, ends: Any) -> None:
    lost_sessions(runtime, 3)
    sweep_once()
    (key,) = waiting()
    ends(TaskSession.objects.get(id=key))
    assert not waiting()


@pytest.mark.parametrize("how", ["policy", "owner", "worktree"])
def test_session_that_no_longer_qualifies_leaves_the_queue(runtime: RecordingRuntime, how: str) -> None:
    lost_sessions(runtime, 3)
    sweep_once()
    (key,) = waiting()
    session = TaskSession.objects.get(id=key)
    if how == "policy":
        change(session, policy="manual")
    elif how == "owner":
        change(session, owner=User.objects.create_user("stranger"))
    else:
        change(session, state="FAILED")
    settle_starts()
    admit()
    assert key not in ordered_sessions()
    assert not waiting()


def test_session_held_by_another_supervisor_is_not_admitted(runtime: RecordingRuntime) -> None:
    lost_sessions(runtime, 3)
    sweep_once()
    (key,) = waiting()
    later = timezone.now() + timedelta(minutes=1)
    change(execution_of(TaskSession.objects.get(id=key)), owner="another", lease_expires_at=later)
    settle_starts()
    assert admission.load_next_starts("me", StartSlots()) == []
    assert key in waiting()


def test_start_in_the_boot_grace_period_is_not_counted() -> None:
    session = make_session()
    change(execution_of(session), owner=MINE.owner, generation=1)
    Intent.objects.filter(session=session).update(by=None)
    order = session.intents.get()
    plan = claims.claim_start(session.id, order.id, MINE.owner, running_launch_id=None, in_grace=True)
    assert plan is not None
    assert fresh(session).start_attempts == 0
    again = Intent.objects.filter(id=order.id)
    again.update(claimed_generation=None)
    assert claims.claim_start(session.id, order.id, MINE.owner, running_launch_id=None) is not None
    assert fresh(session).start_attempts == 1


def test_grace_period_exempts_only_the_first_start() -> None:
    grace, one, other = GracePeriod(), uuid.uuid4(), uuid.uuid4()
    assert not grace.is_exempt(one)  # it has not started
    grace.begin(60)
    assert grace.is_exempt(one)
    assert grace.is_exempt(one)  # a request does not count as a start
    grace.record_start(one)
    assert not grace.is_exempt(one)
    assert grace.is_exempt(other)
    grace.begin(0)
    assert not grace.is_exempt(other)


def test_machine_memory_limits_executors_without_their_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Executor.objects.create(name="here", runtime="local_standalone")
    boxes = Executor.objects.create(name="boxes", runtime="local_docker")
    far = Executor.objects.create(name="far", runtime="sprites")
    executor = Executor.objects.create(name="said", runtime="local_standalone", max_live=3)
    monkeypatch.setattr(capacity, "machine_memory", lambda: 16 << 30)
    assert [capacity.agent_limit(one) for one in (here, boxes, far, executor)] == [32, 32, None, 3]
    assert set(capacity.executors_sharing_room(here)) == set(capacity.executors_sharing_room(boxes)) == {here, boxes}
    assert set(capacity.executors_sharing_room(executor)) == {executor}
    assert capacity.agents_that_fit(1 << 30) == capacity.MIN_AGENTS


def test_machine_memory_is_detected() -> None:
    assert 100 << 20 < capacity.machine_memory() < 1 << 50
