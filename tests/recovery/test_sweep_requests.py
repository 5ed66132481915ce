"""A requested sweep is carried out immediately, and the request stores its result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sessions_app.kernel.database_threads import run_in_database
from sessions_app.models import RecoverySweep, SweepRequest, TaskSession
from sessions_app.recovery.services.sweeps import request_sweep
from sessions_app.supervisor.loop import SupervisorLoop
from tests.supervisor.recording_runtime import UNKNOWN, RecordingRuntime
from tests.supervisor.rows import fresh, make_user, running_session
from tests.waiting import eventually_async

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def session(runtime: RecordingRuntime) -> TaskSession:
    """Return a session that should run and cannot be observed."""
    made = running_session(
        runtime=runtime.name, execution={"runtime": runtime.name, "owner": "", "lease_expires_at": None}
    )
    runtime.set_observation(made, UNKNOWN)
    return made


def make_and_await(ask: Callable[[], SweepRequest]) -> SweepRequest:
    """Make a request; return it once a supervisor, started without a boot sweep, has carried it out."""

    async def run() -> SweepRequest:
        stop, supervisor = asyncio.Event(), SupervisorLoop()
        supervising = asyncio.create_task(supervisor.run(stop, first_sweep=False))
        sweep_request = await run_in_database(ask)

        async def done() -> bool:
            return await run_in_database(lambda: fresh(sweep_request).done_at is not None)

        try:
            await eventually_async(done, describe="the request is done")
        finally:
            stop.set()
            await supervising
        return sweep_request

    return fresh(asyncio.run(run()))


def report_of(sweep_request: SweepRequest) -> dict[str, Any]:
    """Return the report of a finished request."""
    assert sweep_request.report is not None
    return dict(sweep_request.report)


def test_requested_sweep_is_stored_even_if_it_decides_nothing(session: TaskSession) -> None:
    sweep_request = make_and_await(lambda: request_sweep(make_user()))
    sweep = RecoverySweep.objects.get()
    assert (sweep_request.sweep, sweep.trigger, sweep.examined) == (sweep, "reconcile", 1)
    assert report_of(sweep_request)["sweep_id"] == str(sweep.id)
    assert [row["rule"] for row in report_of(sweep_request)["sessions"]] == ["unknown_first"]


def test_requested_sweep_examines_only_the_named_sessions(session: TaskSession, runtime: RecordingRuntime) -> None:
    running_session(task=session.task, runtime=runtime.name, execution={"runtime": runtime.name, "owner": ""})
    sweep_request = make_and_await(lambda: request_sweep(None, sessions=[session.id]))
    assert [row["session_id"] for row in report_of(sweep_request)["sessions"]] == [str(session.id)]


def test_dry_run_leaves_only_its_report(session: TaskSession, runtime: RecordingRuntime) -> None:
    runtime.sees.clear()  # now dead, so a sweep would act
    before = (session.state, session.last_seq)
    sweep_request = make_and_await(lambda: request_sweep(None, dry_run=True))
    assert (sweep_request.sweep, report_of(sweep_request)["dry_run"], report_of(sweep_request)["examined"]) == (
        None,
        True,
        1,
    )
    assert report_of(sweep_request)["sessions"][0]["agent_action"] != "none"
    assert (fresh(session).state, fresh(session).last_seq) == before
    assert not RecoverySweep.objects.exists()


def test_requests_made_without_a_supervisor_are_carried_out_in_order(session: TaskSession) -> None:
    first = request_sweep(None)
    second = make_and_await(lambda: request_sweep(None))
    done = fresh(first).done_at
    assert done is not None
    assert second.done_at is not None
    assert done < second.done_at
    assert RecoverySweep.objects.count() == 2
