"""``manage.py hosts`` takes hosts out of service and back, and waits for a drain."""

from __future__ import annotations

import json
import time
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from sessions_app.hosts.models import HostMaintenance
from sessions_app.models import Supervisor
from tests.hosts.processes import reported
from tests.supervisor.rows import change, execution_of, running_session

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    output = StringIO()
    call_command("hosts", *arguments, stdout=output)
    return output.getvalue()


def attend(place: str) -> None:
    now = timezone.now()
    Supervisor.objects.create(boot_id="b", host_id=place, started_at=now, beat_at=now)


def test_host_is_cordoned_listed_and_put_back_into_service() -> None:
    reported("supervisor", 0)
    assert run("cordon", "build-1").startswith("build-1 takes no new sessions.")
    assert run().splitlines()[0] == "build-1  0 agents  CORDONED"
    assert json.loads(run("--json"))["hosts"][0]["service"] == "cordoned"
    assert run("uncordon", "build-1") == "build-1 is in service again.\n"
    assert json.loads(run("--json"))["hosts"][0]["service"] == "in service"


def test_host_that_drained_for_a_shutdown_returns_unless_somebody_has_decided_otherwise() -> None:
    reported("supervisor", 0)
    run("drain", "build-1", "--for-shutdown")
    assert json.loads(run("--json"))["hosts"][0]["service"] == "draining"
    assert run("uncordon", "build-1", "--after-shutdown") == "build-1 is in service again.\n"
    run("cordon", "build-1")
    assert run("uncordon", "build-1", "--after-shutdown").startswith("build-1 stays out of service")
    assert json.loads(run("--json"))["hosts"][0]["service"] == "cordoned"


@pytest.mark.parametrize("arguments", [("cordon", "nowhere", "--json"), ("--json", "cordon", "nowhere")])
def test_unknown_host_exits_with_status_two(arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError, match="No host is called") as error:
        run(*arguments)
    assert error.value.returncode == 2


def test_drain_of_an_empty_host_ends_at_once() -> None:
    reported("supervisor", 0)
    assert run("drain", "build-1", "--wait") == "Nothing runs on build-1 any more.\n"
    assert HostMaintenance.objects.get().draining_at is not None


def test_drain_names_what_still_runs_at_its_time_limit() -> None:
    reported("supervisor", 0)
    session = running_session(execution={"host_id": "p1"})
    document = json.loads(run("drain", "build-1", "--json"))
    assert (document["drained"], document["attended"], document["running"]) == (False, False, 1)
    assert [one["id"] for one in document["sessions"]] == [str(session.id)]
    with pytest.raises(SystemExit) as ended:
        run("drain", "build-1", "--wait", "--timeout", "0.01")
    assert ended.value.code == 3


def test_drain_waits_until_nothing_runs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    reported("supervisor", 0)
    attend("p1")
    execution = execution_of(running_session(execution={"host_id": "p1"}))
    monkeypatch.setattr(time, "sleep", lambda _: change(execution, status="stopped"))
    assert run("drain", "build-1", "--wait").splitlines() == [
        "1 session still runs",
        "Nothing runs on build-1 any more.",
    ]


def test_interrupted_wait_leaves_the_host_draining(monkeypatch: pytest.MonkeyPatch) -> None:
    reported("supervisor", 0)
    running_session(execution={"host_id": "p1"})

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(CommandError, match="build-1 drains on") as error:
        run("drain", "build-1", "--wait")
    assert error.value.returncode == 130
    assert HostMaintenance.objects.get().draining_at is not None
