"""What a launch waits for is shown while it waits, written only on change, and gone once it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from executors_app.runtimes import ReportWait
from executors_app.wire.errors import LaunchFailed
from executors_app.wire.executions import Launched, LaunchSpec, LaunchWait
from sessions_app.board.services.board import session_rows
from sessions_app.models import Lease, TaskSession
from sessions_app.sessions.services.status import session_status
from sessions_app.sessions.views.session_summary import session_chips
from sessions_app.starts import launch_waits
from sessions_app.starts.claims import StartClaim
from sessions_app.starts.launch_waits import launch_reporting, write_launch_wait
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.pages.world import supervise
from tests.supervisor.recording_runtime import RecordingRuntime, with_registry
from tests.supervisor.rows import MINE, change, execution_of, fresh, names, running_session, shown_situation
from tests.waiting import eventually_async

pytestmark = pytest.mark.django_db(transaction=True)
FULL = LaunchWait("pod_unschedulable", "No node can take its Pod yet: 2 Insufficient memory.")
FULLER = LaunchWait("pod_unschedulable", "No node can take its Pod yet: 3 Insufficient memory.")
USUAL = LaunchWait("pod_prepared", "A node prepares its Pod.", is_obstacle=False)


@dataclass
class Plan:
    """What is written needs of the claim of a start."""

    session_id: Any
    lease: Lease = MINE
    spec: Any = None


class WaitingRuntime(RecordingRuntime):
    """A runtime whose launches report these waits, each until ``until`` says that it was seen, and then fail."""

    waits: Sequence[LaunchWait] = ()

    def __init__(self, until: Callable[[LaunchWait], Any]):
        super().__init__()
        self._until = until

    async def launch_reporting(self, spec: LaunchSpec, report: ReportWait) -> Launched:
        """Report each wait over and over."""
        for wait in self.waits:
            for _ in range(3):
                report(wait)
                await asyncio.sleep(0)
            await self._until(wait)
        raise LaunchFailed("There is no place.")


def starting() -> TaskSession:
    session = running_session(state="STARTING", launch_id="")
    change(execution_of(session), status="starting")
    return session


def plan_of(session: TaskSession) -> StartClaim:
    return cast(StartClaim, Plan(session.id))


def launch(session: TaskSession, *waits: LaunchWait, written: bool = True) -> list[str]:
    """Launch, and return what the log says that it waited for."""

    async def attempt(registry: ExecutionRegistry) -> None:
        async def until(wait: LaunchWait) -> None:
            def is_written() -> bool:
                return execution_of(session).error_message == wait.text

            if written:
                await eventually_async(lambda: registry.database(is_written), describe=wait.text)

        place: Any = WaitingRuntime(until)
        place.waits = waits
        with pytest.raises(LaunchFailed):
            await launch_reporting(registry, plan_of(session), place)

    with_registry(attempt)
    events = session.events.filter(name="session.agentctl_starting").order_by("seq")
    return [payload["error_message"] for payload in events.values_list("payload", flat=True)]


def test_each_wait_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_waits, "_INTERVAL", 0.0)
    monkeypatch.setattr(launch_waits, "_PATIENCE", 0.0)
    session = starting()
    assert launch(session, USUAL, FULL, FULLER, USUAL) == [USUAL.text, FULL.text, FULLER.text, USUAL.text]


def test_ordinary_step_that_is_soon_over_is_not_written() -> None:
    assert launch(starting(), USUAL, written=False) == []


def test_writes_of_a_launch_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_waits, "_INTERVAL", 0.0)
    monkeypatch.setattr(launch_waits, "_MOST_WRITES", 1)
    session = starting()
    assert launch(session, FULL) == [FULL.text]
    monkeypatch.setattr(launch_waits, "_MOST_WRITES", 0)
    assert launch(session, FULLER, written=False) == [FULL.text]


def test_page_list_and_api_say_what_a_start_waits_for() -> None:
    session = starting()
    supervise()
    write_launch_wait(plan_of(session), FULL)
    assert shown_situation(fresh(session)).text == f"The agent is starting. {FULL.text}"
    status = session_status(fresh(session))
    assert status["start_wait"] == {"reason": "launch", "before": 0, "host": "", "text": FULL.text}
    assert status["error_message"] == ""
    owner = session.task.created_by
    assert owner is not None
    (row,) = session_rows([fresh(session)], owner).values()
    assert FULL.text in session_chips(row)["chips"]


@pytest.mark.parametrize("changes", [{"status": "ready"}, {"status": "stopped"}])
def test_wait_of_a_launch_that_is_over_is_not_written(changes: dict[str, Any]) -> None:
    session = starting()
    change(execution_of(session), **changes)
    write_launch_wait(plan_of(session), FULL)
    assert execution_of(session).error_message == ""


def test_wait_of_a_session_that_was_stopped_is_not_written() -> None:
    session = starting()
    change(session, desired_state="stopped")
    write_launch_wait(plan_of(session), FULL)
    assert execution_of(session).error_message == ""
    assert "session.agentctl_starting" not in names(session)
