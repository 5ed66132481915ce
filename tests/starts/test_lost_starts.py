"""A start that loses against a stop ends what it has launched (rule 9), whenever the stop is carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from executors_app.wire.errors import LaunchFailed
from executors_app.wire.executions import ExecutionFacts, Launched, LaunchSpec
from sessions_app.models import Intent, TaskSession
from sessions_app.sessions.services import intents
from sessions_app.starts import claims
from sessions_app.starts.outcomes import write_stopped
from sessions_app.supervisor.dispatcher import Dispatcher, next_start_intent
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.supervisor.recording_runtime import RecordingRuntime, with_registry
from tests.supervisor.rows import NO_LEASE, change, execution_of, fresh, make_session, make_user, running_session
from tests.waiting import PATIENCE, eventually_async

pytestmark = pytest.mark.django_db(transaction=True)

Step = Callable[..., Any]


class Machine:
    """What runs on the recording runtime. A launch waits for ``may_launch`` before its agentctl can be found."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.is_launching, self.may_launch = asyncio.Event(), asyncio.Event()
        self.is_reachable = self.reports_launches = True

    async def launch(self, spec: LaunchSpec) -> Launched:
        """Start the agentctl of an execution; it never answers."""
        self.is_launching.set()
        await self.may_launch.wait()
        self.running.add(spec.execution_id)
        if not self.reports_launches:
            raise LaunchFailed("It did not report its address.")
        return Launched(
            url="unix:/nowhere/agentctl",
            pid=None,
            boot_id="boot",
            workspace_path="/",
            worktree_id="w",
            worktree_path="/",
            worktree_branch="b",
        )

    async def end(self, execution: ExecutionFacts) -> bool:
        """End what runs of an execution."""
        if self.is_reachable:
            self.running.discard(execution.id)
        return self.is_reachable


@pytest.fixture
def machine(runtime: RecordingRuntime, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(runtime, "launch", made.launch)
    monkeypatch.setattr(runtime, "end", made.end)
    return made


def started_before() -> TaskSession:
    """Return a session whose agentctl has ended, with an open start."""
    execution = {**NO_LEASE, "status": "stopped"}
    session = running_session(runtime="recording", execution=execution, state="ERROR")
    Intent.objects.create(session=session, kind="start", payload={"mode": "auto"})
    return session


def never_started() -> TaskSession:
    """Return a new session."""
    return make_session(runtime="recording")


def stop(session: TaskSession) -> None:
    intents.request_stop(session.id, make_user())


def close(session: TaskSession) -> None:
    intents.request_close(session.id, make_user(), "completed")


async def carry_out(registry: ExecutionRegistry) -> None:
    """Carry out all that is open."""
    dispatcher = Dispatcher(registry)
    await dispatcher.wake_pending()
    await asyncio.wait_for(dispatcher.wait_until_idle(), PATIENCE)


def outcome_of(session: TaskSession, kind: str) -> str:
    """Return the outcome of the session's newest intent of a kind; empty for an open one."""
    newest: Intent = session.intents.filter(kind=kind).latest("created_at")
    return newest.outcome


@pytest.mark.parametrize("begin", [never_started, started_before])
@pytest.mark.parametrize("end", [stop, close])
def test_launch_that_outlasts_a_stop_is_undone(machine: Machine, begin: Step, end: Step) -> None:
    session = begin()

    async def stop_during_launch(registry: ExecutionRegistry) -> None:
        dispatcher = Dispatcher(registry)
        await dispatcher.wake_pending()
        await asyncio.wait_for(machine.is_launching.wait(), PATIENCE)
        await registry.database(end, session)
        await dispatcher.wake_pending()
        await eventually_async(
            lambda: registry.database(outcome_of, session, end.__name__),
            describe="the stop is carried out during the launch",
        )
        machine.may_launch.set()
        await asyncio.wait_for(dispatcher.wait_until_idle(), PATIENCE)

    with_registry(stop_during_launch)

    assert not machine.running
    assert outcome_of(session, "start") == "stopped"
    assert (execution_of(session).status, execution_of(session).owner) == ("stopped", "")


def test_start_of_a_crashed_supervisor_is_undone_after_a_stop(machine: Machine) -> None:
    session = never_started()

    async def crash_after_launch(registry: ExecutionRegistry) -> None:
        start = await registry.database(next_start_intent, session.id)
        assert start is not None
        await registry.database(claims.claim_start, session.id, start, registry.boot_id, running_launch_id=None)
        machine.running.add(str(session.agent_execution_id))

    with_registry(crash_after_launch)
    stop(session)
    write_stopped(session.id, None, "stopped")
    session.intents.filter(kind="stop").update(done_at=timezone.now(), outcome="stopped")
    with_registry(carry_out)

    assert not machine.running
    assert outcome_of(session, "start") == "stopped"


def test_stop_ends_what_a_failed_launch_has_left(machine: Machine) -> None:
    session = never_started()
    machine.reports_launches = False
    machine.may_launch.set()
    with_registry(carry_out)
    assert machine.running
    assert execution_of(session).agentctl_url == ""

    stop(session)
    with_registry(carry_out)
    assert not machine.running
    assert outcome_of(session, "stop") == "stopped"


def test_session_whose_place_was_never_reached_can_be_closed(machine: Machine) -> None:
    session = never_started()
    machine.reports_launches = machine.is_reachable = False
    machine.may_launch.set()
    with_registry(carry_out)

    close(session)
    with_registry(carry_out)
    assert fresh(session).state == "COMPLETED"


def test_session_that_was_never_launched_needs_no_end(machine: Machine) -> None:
    session = never_started()
    machine.is_reachable = False
    stop(session)
    with_registry(carry_out)
    assert outcome_of(session, "stop") == "stopped"


def test_start_that_a_user_wants_again_is_not_settled(machine: Machine) -> None:
    session = never_started()
    session.intents.update(claimed_generation=1)
    start = session.intents.get()
    change(session, desired_state="stopped")
    assert claims.has_lost_to_stop(session.id, start.id)

    change(session, desired_state="running")
    claims.settle_lost_start(session.id, start.id)
    assert fresh(start).done_at is None
    assert not claims.has_lost_to_stop(session.id, start.id)


def test_lost_start_waits_for_the_open_stop() -> None:
    session = never_started()
    session.intents.update(claimed_generation=1)
    stop(session)
    assert not claims.has_lost_to_stop(session.id, session.intents.get(kind="start").id)
