"""A host that was declared lost and is back ends what it still runs, keeps its work, and only then claims anything."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from executors_app.cleanup import keep_newest_snapshot
from executors_app.machine import crash_points
from executors_app.machine.git import recovery_snapshots
from executors_app.machine.git.recovery_snapshots import RecoverySnapshot
from executors_app.machine.process import identity
from sessions_app.hosts import cordons, heartbeats, losses, returns
from sessions_app.hosts.models import Host, HostMaintenance, HostProcess, Role
from sessions_app.models import TaskSession
from tests.executors.repositories import run_git
from tests.finish.repositories import mergeable
from tests.supervisor.rows import fresh, names, running_session

pytestmark = pytest.mark.django_db


class Registry:
    """The part of a supervisor that this needs; its database calls run at once."""

    boot_id = "me"

    async def database(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


class Place:
    """A runtime that records what it is asked to end."""

    def __init__(self, *, ends: bool):
        self.ends, self.ended = ends, list[str]()

    async def end(self, facts: Any) -> bool:
        self.ended.append(facts.id)
        return self.ends


@pytest.fixture
def host(db: None, settings: Any) -> Host:
    """Return the host of this process, which was declared lost while it was silent."""
    settings.KANDEV_HOST_NAME = "build-1"
    heartbeats.Heartbeat(Role.SUPERVISOR).beat()
    host = Host.objects.get()
    HostMaintenance.objects.create(host=host, lost_at=timezone.now())
    return host


def session_here() -> TaskSession:
    return running_session(execution={"host_id": identity.host_id(), "worktree_branch": "kandev/x"})


def return_with(place: Place, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(returns, "runtime", lambda name: place)
    monkeypatch.setattr(asyncio, "to_thread", _at_once)
    # Run by hand: a loop of its own would use another connection than the test.
    step = returns.end_lost_executions(Registry())  # type: ignore[arg-type]
    try:
        step.send(None)
    except StopIteration as ended:
        return bool(ended.value)
    raise AssertionError("it waited for something")


async def _at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def test_returned_host_ends_its_executions_and_is_no_longer_lost(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_before, left_over = session_here(), session_here()
    lost = next(one for one in losses.load_lost() if one.session_id == ended_before.id)
    losses.end_lost(lost, is_here=False)
    executions = {str(ended_before.agent_execution_id), str(left_over.agent_execution_id)}
    place = Place(ends=True)

    assert return_with(place, monkeypatch)

    assert set(place.ended) == executions
    assert not HostMaintenance.objects.exists()
    for session in (ended_before, left_over):
        assert names(session).count("session.lost_host_returned") == 1
        assert fresh(session).error_code == "host_lost"
    assert return_with(Place(ends=True), monkeypatch)
    assert names(left_over).count("session.lost_host_returned") == 1, "once"


class Killed(BaseException):
    """The process dies, and handles nothing any more."""


def test_supervisor_that_dies_between_an_end_and_its_record_is_completed_by_the_next(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_here()

    def die(point: str, subject: object) -> None:
        if point == "returned.ended":
            raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(crash_points, "reached", die)
        with pytest.raises(Killed):
            return_with(Place(ends=True), dying)
    assert HostMaintenance.objects.get().lost_at is not None
    assert names(session).count("session.lost_host_returned") == 0
    assert return_with(Place(ends=True), monkeypatch)
    assert names(session).count("session.lost_host_returned") == 1


def test_host_that_returns_under_another_name_ends_its_executions(
    host: Host, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_here()
    for lost in losses.load_lost("build-1"):
        losses.end_lost(lost, is_here=False)
    settings.KANDEV_HOST_NAME = "build-1-renamed"
    place = Place(ends=True)
    assert return_with(place, monkeypatch)
    assert place.ended == [str(session.executions.order_by("created_at")[0].id)]
    assert names(session).count("session.lost_host_returned") == 1


def test_host_whose_execution_does_not_end_stays_lost(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_here()
    assert not return_with(Place(ends=False), monkeypatch)
    assert HostMaintenance.objects.get().lost_at is not None
    assert "session.lost_host_returned" not in names(session)
    assert cordons.refusing_host(session.executions.order_by("created_at")[0]) == "build-1"


def test_host_ends_nothing_of_another_host(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Host.objects.create(name="build-2", first_seen_at=timezone.now())
    HostMaintenance.objects.create(host=other, lost_at=timezone.now())
    now = timezone.now()
    HostProcess.objects.create(host=other, place="p2", role="web", release="1", started_at=now, beat_at=now)
    running_session(execution={"host_id": "p2", "worktree_branch": "kandev/x"})
    for lost in losses.load_lost():
        losses.end_lost(lost, is_here=False)
    place = Place(ends=True)
    assert return_with(place, monkeypatch)
    assert place.ended == []
    assert HostMaintenance.objects.get().host == other


def test_last_saved_work_gets_a_ref_that_no_later_snapshot_replaces(tmp_path: Path) -> None:
    made = mergeable(tmp_path / "team")
    session_id = str(made.session.id)
    tree, head = run_git(made.path, "rev-parse", "HEAD^{tree}"), run_git(made.path, "rev-parse", "HEAD")
    snapshot = RecoverySnapshot("", head, head, session_id, ref="")
    message = recovery_snapshots.recovery_message(snapshot, "turn", "")
    commit = run_git(made.path, "commit-tree", tree, "-p", head, "-m", message)
    run_git(made.path, "update-ref", recovery_snapshots.session_recovery_ref(session_id), commit)

    ref = keep_newest_snapshot(made.path, session_id)

    assert run_git(made.path, "rev-parse", ref) == commit
    assert keep_newest_snapshot(made.path, session_id) == ref, "again"
    assert keep_newest_snapshot(made.path, str(uuid.uuid4())) == ""
