"""Many sessions that should run: a real supervisor starts all of them, a few at a time, none twice."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executors_app import plugins
from executors_app.models import ExecutorRunning
from sessions_app.models import Intent, TaskSession
from sessions_app.sessions.services.status import session_status
from tests.supervisor import commands, fake_agentctl_server, supervisor_process
from tests.supervisor.fake_agentctl_server import FakeAgentctlRuntime
from tests.supervisor.rows import make_task, running_session
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.django_db(transaction=True)
MANY = 24
AT_ONCE = 5
LEASE_TTL = 10


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the URL of the fake agentctls."""
    with fake_agentctl_server.serving() as address:
        known = {**plugins.runtimes(), "fake_agentctls": FakeAgentctlRuntime(address)}
        monkeypatch.setattr(plugins, "runtimes", lambda: known)
        yield address


def create_lost_sessions(number: int) -> None:
    """Create that many sessions that should run although no agentctl exists."""
    free = {"owner": "", "lease_expires_at": None}
    for _ in range(number):
        running_session(runtime="fake_agentctls", execution=free, task=make_task())


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a supervisor that starts few sessions at a time."""
    values = {"KANDEV_MAX_STARTS_PER_PASS": str(AT_ONCE), "KANDEV_LEASE_TTL": str(LEASE_TTL)}
    return commands.environment(home, **values)


def counts(url: str) -> dict[str, Any]:
    """Return the counts of the fake agentctls."""
    with urllib.request.urlopen(f"{url}/counts", timeout=PATIENCE) as answer:
        document: dict[str, Any] = json.loads(answer.read())
    return document


@pytest.mark.any_database
def test_all_sessions_start_a_few_at_a_time_and_report_their_place(url: str, tmp_path: Path) -> None:
    create_lost_sessions(MANY)
    most, places = 0, []

    def all_run() -> bool:
        nonlocal most
        most = max(most, Intent.objects.filter(kind="start", done_at=None, by=None).count())
        waits = TaskSession.objects.filter(start_rank__isnull=False).order_by("-start_rank").first()
        if waits is not None:
            places.append(session_status(waits)["start_wait"])
        return int(counts(url)["up"]) == MANY

    with supervisor_process.supervising(url, tmp_path / "log", environment(tmp_path)):
        eventually(all_run, timeout=90, describe="all sessions run")
    assert counts(url)["started"] == MANY
    assert 1 < most <= AT_ONCE
    befores = [one["before"] for one in places if one is not None]
    assert max(befores) >= MANY // 2
    moving = befores[befores.index(max(befores)) :]
    assert moving == sorted(moving, reverse=True), "places only get better, so no session is overtaken"


def test_supervisor_killed_in_mid_storm_is_replaced_without_duplicates(url: str, tmp_path: Path) -> None:
    create_lost_sessions(MANY)
    with supervisor_process.supervising(url, tmp_path / "first.log", environment(tmp_path)) as first:
        eventually(lambda: int(counts(url)["up"]) >= 3, timeout=60, describe="three sessions run")
        first.send_signal(signal.SIGKILL)
        first.wait(PATIENCE)
    dead = set(ExecutorRunning.objects.exclude(owner="").values_list("owner", flat=True))
    assert len(dead) == 1
    with supervisor_process.supervising(url, tmp_path / "second.log", environment(tmp_path)):
        left = ExecutorRunning.objects.filter(owner__in=dead)
        eventually(lambda: not left.exists(), timeout=60, describe="another supervisor has taken over all sessions")
        eventually(
            lambda: TaskSession.objects.exclude(launch_id="").filter(receipts__isnull=False).distinct().count() == MANY,
            timeout=90,
            describe="all sessions run and have a receipt",
        )
    for session in TaskSession.objects.all():
        names = list(session.events.values_list("name", flat=True))
        assert names.count("session.run.interrupted") <= 1
        kinds = list(session.receipts.values_list("kind", flat=True))
        assert len([kind for kind in kinds if kind != "reattached"]) == 1, kinds
    assert counts(url)["started"] == MANY
