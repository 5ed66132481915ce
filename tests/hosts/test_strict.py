"""``recover_sessions --strict`` fails while a host with agents has no supervisor."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from executors_app.machine.process import identity
from sessions_app.supervisor import leases
from tests.hosts.processes import attended, reported
from tests.pages.world import World

pytestmark = pytest.mark.django_db(transaction=True)

LONG = 600.0


def run_strictly(*flags: str) -> tuple[int, list[dict[str, Any]], str]:
    """Return the exit status, the unattended hosts of the document, and what it prints of failures."""
    out, err = StringIO(), StringIO()
    status = 0
    try:
        call_command("recover_sessions", "--json", "--strict", *flags, stdout=out, stderr=err)
    except SystemExit as ended:
        status = int(str(ended.code))
    return status, json.loads(out.getvalue())["unattended_hosts"], err.getvalue()


def test_host_without_a_supervisor_fails_with_its_own_status(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "is_shared_database", lambda: True)
    session = world.running_session()
    session.executions.update(host_id="p1")
    other = world.running_session()
    other.executions.update(host_id="p2")
    reported("supervisor", LONG)
    attended("p2")

    status, hosts, err = run_strictly("--dry-run")
    assert (status, hosts) == (5, [{"name": "build-1", "sessions": 1}])
    assert err.strip() == "no supervisor: host build-1 has 1 agent; start manage.py supervise there"
    assert run_strictly("--dry-run", "--session", str(other.id))[:2] == (0, [])
    assert run_strictly("--dry-run", "--runtime", "remote")[:2] == (0, [])
    attended("p1")
    assert run_strictly("--dry-run")[:2] == (0, [])


def test_only_host_counts_as_attended_whatever_it_was_called(world: World) -> None:
    if leases.is_shared_database():
        pytest.skip("PostgreSQL may have other hosts")
    session = world.running_session()
    session.executions.update(host_id="p1")
    reported("supervisor", LONG)
    assert run_strictly("--dry-run")[:2] == (0, [])


def test_host_of_the_command_counts_as_attended(world: World) -> None:
    session = world.running_session()
    session.executions.update(host_id=identity.host_id())
    reported("supervisor", LONG, place=identity.host_id())
    assert run_strictly("--dry-run")[:2] == (0, [])
