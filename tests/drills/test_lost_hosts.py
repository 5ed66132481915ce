"""A host is drained and put back, or declared lost and returns: nothing is lost, and nothing runs twice.

All supervisors run on this machine. The rows say that what the first one has started is on another host, as if it were.
"""

from __future__ import annotations

import json
import signal

import pytest

from executors_app.machine.process import identity
from tests.drills.deployment import Deployment, Session
from tests.drills.fleet import Fleet, SupervisorProcess, fleet
from tests.drills.session_steps import start_idle_session, wait_until_talking
from tests.waiting import eventually

pytestmark = [pytest.mark.postgresql]
ELSEWHERE = "another machine"


def supervise(made: Fleet, deployment: Deployment, host: str) -> SupervisorProcess:
    """Start a supervisor on the host of that name, and wait until the host is known."""
    deployment.env["KANDEV_HOST_NAME"] = host
    supervisor = made.supervisor(host)
    eventually(lambda: deployment.rows("SELECT 1 FROM hosts WHERE name = ?", host), describe=f"{host} has reported")
    return supervisor


def move(deployment: Deployment, session: Session, place: str) -> None:
    """Let the rows say that an execution and the processes of its host are at this place."""
    deployment.change("UPDATE executors_running SET host_id = ? WHERE host_id <> ''", place)
    deployment.change(
        "UPDATE host_processes SET place = ?, ended_at = NULL, beat_at = beat_at - interval '1 hour'"
        " WHERE host_id = (SELECT id FROM hosts WHERE name = 'build-a')",
        place,
    )


def test_lost_host_that_returns_ends_what_it_runs_and_nothing_is_sent_twice(deployment: Deployment) -> None:
    with fleet(deployment) as made:
        first = supervise(made, deployment, "build-a")
        session = deployment.start_session("work 600")
        wait_until_talking(session)
        running = session.processes()
        refused = deployment.manage("hosts", "lost", "build-a", "--yes")
        assert refused.returncode == 2, refused.stderr
        assert "reports that it is there" in refused.stderr

        first.signal(signal.SIGKILL)
        move(deployment, session, ELSEWHERE)
        second = supervise(made, deployment, "build-b")
        done = deployment.manage("hosts", "lost", "build-a", "--yes", "--json")

        assert done.returncode == 0, done.stderr
        session.wait_for("ERROR")
        assert session.status()["error_code"] == "host_lost"
        assert [row["state"] for row in session.prompts()] == ["interrupted"]
        assert all(identity.is_alive(process) for process in running), "nobody can end them from here"

        second.signal(signal.SIGTERM)
        deployment.change("UPDATE executors_running SET host_id = ? WHERE host_id <> ''", identity.host_id())
        deployment.change("UPDATE host_processes SET place = ? WHERE place = ?", identity.host_id(), ELSEWHERE)
        supervise(made, deployment, "build-a")

        eventually(
            lambda: not any(identity.is_alive(process) for process in running),
            timeout=60,
            describe="the returned host has ended its execution",
        )
        eventually(
            lambda: "session.lost_host_returned" in session.names(), timeout=60, describe="the return is recorded"
        )
        eventually(lambda: not deployment.rows("SELECT 1 FROM host_maintenance"), describe="the host is no longer lost")
        deployment.api("POST", f"{session.path}/resume/", {"mode": "fresh_start"})
        session.wait_for("WAITING_FOR_INPUT")
        rows = deployment.rows("SELECT id, status, status_reason FROM executors_running ORDER BY created_at")
        assert [(row["status"], row["status_reason"]) for row in rows] == [
            ("stopped", "host_lost_ended"),
            ("ready", ""),
        ]
        assert session.names().count("session.run.started") == 1, "nothing was sent again"


def test_drained_host_runs_nothing_and_resumes_its_sessions_afterwards(deployment: Deployment) -> None:
    with fleet(deployment) as made:
        supervise(made, deployment, "build-a")
        session = start_idle_session(deployment)
        running = session.processes()

        done = deployment.manage("hosts", "drain", "build-a", "--wait", "--timeout", "90", "--json")

        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["running"] == 0
        assert not any(identity.is_alive(process) for process in running)
        session.prompt("remember pelican")
        eventually(
            lambda: (session.status()["start_wait"] or {}).get("host") == "build-a",
            describe="the session says which host it waits for",
        )

        assert deployment.manage("hosts", "uncordon", "build-a").returncode == 0
        eventually(
            lambda: session.names().count("session.run.completed") == 2, timeout=60, describe="the prompt is answered"
        )
        assert session.names().count("session.run.started") == 2
