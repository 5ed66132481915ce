"""One supervisor per database: a second one waits, and a supervisor that ends releases everything."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from sessions_app.models import Supervisor
from sessions_app.supervisor.leases import SupervisorLock
from tests.supervisor.commands import environment, manage, supervising
from tests.supervisor.journals import Journal
from tests.supervisor.recording_agentctl import recording_agentctl
from tests.supervisor.rows import conversation, execution_of, names, running_session
from tests.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)
WAITS, SUPERVISES = "another supervisor is using this database; waiting until it stops", "supervising: "


@pytest.mark.embedded
def test_second_supervisor_waits_says_so_once_and_takes_over(tmp_path: Path) -> None:
    env = environment(tmp_path / "data")
    with supervising(env, tmp_path / "first") as first, supervising(env, tmp_path / "second") as second:
        eventually(lambda: SUPERVISES in first.log + second.log, describe="one supervisor has the role")
        eventually(lambda: WAITS in first.log + second.log, describe="the other supervisor waits")
        holder, waiter = (first, second) if SUPERVISES in first.log else (second, first)
        assert [row.process["pid"] for row in Supervisor.objects.all()] == [holder.process.pid]

        assert holder.ends(signal.SIGKILL) == -signal.SIGKILL
        waiter.wait_for_output(SUPERVISES)
        assert waiter.log.count(WAITS) == 1
        living = Supervisor.objects.get(process__pid=waiter.process.pid)
        assert living.swept_at is not None

        assert waiter.ends() == 0
        assert not Supervisor.objects.filter(boot_id=living.boot_id).exists()


@pytest.mark.embedded
def test_waiting_supervisor_ends_on_sigterm(tmp_path: Path) -> None:
    env = environment(tmp_path / "data")
    with supervising(env, tmp_path / "first") as first, supervising(env, tmp_path / "second") as second:
        eventually(lambda: WAITS in first.log + second.log, describe="one supervisor waits")
        waiter = first if WAITS in first.log else second
        assert waiter.ends() == 0
        assert SUPERVISES not in waiter.log


def test_missing_database_prints_one_line(tmp_path: Path) -> None:
    env = environment(tmp_path / "data", KANDEV_DATABASE_URL="postgres://127.0.0.1:1/x", KANDEV_LOG_FORMAT="console")
    done = manage(env, "supervise")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("CommandError: the database cannot be used: ")
    assert "Traceback" not in done.stderr


def test_worker_without_a_database_exits_with_the_same_status(tmp_path: Path) -> None:
    env = environment(tmp_path / "data", KANDEV_DATABASE_URL="postgres://127.0.0.1:1/x", KANDEV_LOG_FORMAT="console")
    done = manage(env, "qcluster")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("CommandError: the database cannot be used: ")


def test_sigterm_releases_leases_and_leaves_agents_running(tmp_path: Path) -> None:
    session, journal = running_session(execution={"owner": "", "lease_expires_at": None}), Journal()
    with recording_agentctl(session, [*journal.turn_begins("p1"), *journal.says("hello")], "working") as agentctl:
        env = environment(tmp_path / "data")
        with supervising(env, tmp_path / "log") as running:
            running.wait_for_output("supervising: 1 sessions attached")
            held = execution_of(session)
            assert (held.owner != "", held.generation, held.journal_seq) == (True, 2, 3)
            assert running.ends() == 0
        given_back = execution_of(session)
        assert (given_back.owner, given_back.lease_expires_at, given_back.generation) == ("", None, 2)
        assert not Supervisor.objects.exists()
        assert conversation(session)[-1][:3] == ("agent", "hello", {})
        before = names(session)

        with supervising(env, tmp_path / "again") as running:
            running.wait_for_output("supervising: 1 sessions attached")
            assert running.ends() == 0
        assert names(session) == before
        assert agentctl.generations == [2, 3]


def test_killed_supervisor_counts_as_dead_immediately(tmp_path: Path) -> None:
    session = running_session(execution={"owner": "", "lease_expires_at": None})
    with recording_agentctl(session) as agentctl:
        env = environment(tmp_path / "data", KANDEV_LEASE_TTL="600")
        with supervising(env, tmp_path / "log") as running:
            running.wait_for_output("supervising: 1 sessions attached")
            running.ends(signal.SIGKILL)
        with supervising(env, tmp_path / "again") as running:
            running.wait_for_output("supervising: 1 sessions attached")
            running.ends()
        assert agentctl.generations == [2, 3]
    assert [kind for kind in names(session) if kind == "session.receipt"] == ["session.receipt"]


@pytest.mark.embedded
def test_supervisor_lock_names_its_holder(tmp_path: Path, settings: Any) -> None:
    settings.KANDEV_DATA_DIR = tmp_path
    first, second = SupervisorLock("supervise"), SupervisorLock("sweep")
    with first, second:
        assert first.take()
        assert not second.take()
        assert second.held_by() == "supervise"
        first.release()
        assert second.take()
        assert first.held_by() == "sweep"
    assert first.take()
    first.release()
