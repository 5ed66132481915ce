"""A supervisor that is stopped while the database is unavailable shuts down in order, and its leases expire."""

from __future__ import annotations

import asyncio

import pytest
from django.db import OperationalError

from sessions_app.metrics.counters import METRICS_BUFFER
from sessions_app.supervisor import leases
from sessions_app.supervisor.loop import SupervisorLoop
from sessions_app.workflows.driver import leases as run_leases
from tests.supervisor.recording_agentctl import recording_agentctl
from tests.supervisor.rows import execution_of, running_session
from tests.waiting import eventually_async

pytestmark = pytest.mark.django_db(transaction=True)


def away(*_: object) -> None:
    """Raise the error of an unavailable database."""
    raise OperationalError("terminating connection due to administrator command")


def test_shutdown_without_the_database_completes_and_leaves_its_leases(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session = running_session(execution={"owner": "", "lease_expires_at": None})

    async def supervise() -> SupervisorLoop:
        supervisor, stop = SupervisorLoop(), asyncio.Event()
        running = asyncio.create_task(supervisor.run(stop))
        await eventually_async(lambda: supervisor.registry.stream_of(session.id), describe="the stream is attached")
        for place, name in (
            (leases, "release_leases"),
            (run_leases, "release_leases"),
            (leases, "unregister_supervisor"),
            (METRICS_BUFFER, "flush"),
        ):
            monkeypatch.setattr(place, name, away)
        stop.set()
        await asyncio.wait_for(running, 60)
        return supervisor

    with recording_agentctl(session):
        ended = asyncio.run(supervise())
    assert ended.registry.http.closed
    assert ended.registry.streams == {}
    assert execution_of(session).owner == ended.registry.boot_id
    assert "the database is unavailable at shutdown" in caplog.text
