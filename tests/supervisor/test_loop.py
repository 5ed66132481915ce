"""A supervisor's loop: it releases its leases whatever fails at its end, and says it has swept once it has."""

from __future__ import annotations

import asyncio
import logging
import uuid

import pytest
from asgiref.sync import sync_to_async

from sessions_app.models import Supervisor
from sessions_app.recovery.sweep.sweep_pass import SweepScope
from sessions_app.supervisor import leases
from sessions_app.supervisor.job import Job
from sessions_app.supervisor.loop import SupervisorLoop

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]


class EndlessJob(Job):
    """Never finishes a step, and notes that it was stopped and finished."""

    name = "endless"
    ended: list[str]

    async def run_step(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self.ended.append("stop")

    async def finish(self) -> None:
        self.ended.append("finish")


class FailingJob(EndlessJob):
    """Fails to stop and to finish."""

    name = "failing"

    async def stop(self) -> None:
        raise RuntimeError("cannot stop")

    async def finish(self) -> None:
        raise RuntimeError("cannot finish")


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the owner of the leases with each release."""
    owners: list[str] = []
    release = leases.release_leases

    def note(boot_id: str, *executions: uuid.UUID) -> None:
        owners.append(boot_id)
        release(boot_id, *executions)

    monkeypatch.setattr(leases, "release_leases", note)
    monkeypatch.setattr(leases, "is_shared_database", lambda: True)
    return owners


async def run_and_stop(supervisor: SupervisorLoop, *, first_sweep: bool = False) -> None:
    stop = asyncio.Event()
    stop.set()
    await supervisor.run(stop, first_sweep=first_sweep)


async def fail(*_: object) -> None:
    raise RuntimeError("cannot be closed")


async def test_leases_are_released_once_although_a_job_cannot_be_stopped(
    released: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = SupervisorLoop()
    other = EndlessJob(supervisor)
    other.ended = []
    supervisor.jobs = [FailingJob(supervisor), other]
    with caplog.at_level(logging.ERROR):
        await run_and_stop(supervisor)
    assert released == [supervisor.registry.boot_id]
    assert other.ended == ["stop", "finish"]
    assert not await sync_to_async(Supervisor.objects.exists)()
    assert {record.getMessage() for record in caplog.records} == {
        "could not stop the job failing at shutdown",
        "could not finish the job failing at shutdown",
    }


@pytest.mark.parametrize("part", ["dispatcher.close", "registry.close_stream"])
async def test_leases_are_released_although_another_part_cannot_be_closed(
    part: str, released: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = SupervisorLoop()
    owner, method = part.split(".")
    monkeypatch.setattr(getattr(supervisor, owner), method, fail)
    supervisor.registry.streams[uuid.uuid4()] = None  # type: ignore[assignment]
    monkeypatch.setattr(supervisor, "jobs", [])
    await run_and_stop(supervisor)
    assert released == [supervisor.registry.boot_id]


@pytest.mark.parametrize(
    ("scope", "has_swept"),
    [
        (None, False),
        (SweepScope("boot"), True),
        (SweepScope("reconcile"), True),
        (SweepScope("command", dry_run=True), False),
        (SweepScope("reconcile", sessions=[uuid.uuid4()]), False),
        (SweepScope("command", runtime="remote"), False),
    ],
    ids=["no sweep", "boot", "interval", "dry run", "some sessions", "one runtime"],
)
async def test_supervisor_has_swept_once_it_has_seen_every_row(
    scope: SweepScope | None, has_swept: bool, released: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "unregister_supervisor", lambda boot_id: None)
    supervisor = SupervisorLoop()
    supervisor.jobs = []
    if scope is None:
        await run_and_stop(supervisor)
    else:
        await supervisor.open()
        await supervisor.sweep(scope)
        await supervisor.close()
    row = await sync_to_async(Supervisor.objects.get)()
    assert (row.swept_at is not None) is has_swept
