"""Several supervisors share the sessions of one database; one at a time commands each session, whatever happens."""

from __future__ import annotations

import asyncio
import signal
from datetime import datetime, timedelta

import pytest

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.wire.errors import AgentctlRefused
from tests import postgresql
from tests.drills.deployment import Deployment, Session
from tests.drills.fleet import Fleet, SupervisorProcess, fleet
from tests.drills.session_steps import check_only_turn, wait_until_talking
from tests.environment import DATABASE_URL
from tests.waiting import eventually

pytestmark = [pytest.mark.postgresql]
FENCED = ("another supervisor has taken it over", "another supervisor has its lease now", "its stream ended: ")
"""What a supervisor logs when another one has taken over its session."""


def disable_lease_expiry(deployment: Deployment) -> None:
    """Prevent leases from expiring and periodic sweeps from running while a test waits: only other reactions count."""
    deployment.env |= {"KANDEV_LEASE_TTL": "600", "KANDEV_RECONCILE_INTERVAL": "600"}


def start_working_session(
    made: Fleet, deployment: Deployment, script: str = "work 6"
) -> tuple[SupervisorProcess, Session]:
    """Return the first supervisor, and a session in mid-turn that it holds."""
    first = made.supervisor("first")
    session = deployment.start_session(script)
    wait_until_talking(session)
    assert first.holds(session)
    return first, session


def test_sessions_of_a_killed_supervisor_are_taken_over_at_once(deployment: Deployment) -> None:
    disable_lease_expiry(deployment)
    with fleet(deployment) as made:
        first, session = start_working_session(made, deployment)
        second = made.supervisor("second")
        before = session.execution
        assert before["owner"] == first.boot_id

        first.signal(signal.SIGKILL)

        eventually(lambda: second.holds(session), describe="the second supervisor takes over")
        check_only_turn(session)
        assert session.execution["generation"] == before["generation"] + 1
        assert [row["kind"] for row in session.receipts()] == ["fresh", "reattached"]


def test_supervisor_that_is_stopped_hands_over_without_new_events(deployment: Deployment) -> None:
    disable_lease_expiry(deployment)
    with fleet(deployment) as made:
        first, session = start_working_session(made, deployment, "work 1")
        check_only_turn(session)
        second = made.supervisor("second")
        before = session.names()

        first.signal(signal.SIGTERM)

        eventually(lambda: second.holds(session), describe="the second supervisor takes over")
        session.prompt("work 1")
        eventually(
            lambda: session.names().count("session.run.completed") == 2,
            describe="the second turn has completed",
        )
        assert session.names()[len(before)] == "session.prompt.queued"
        assert [row["kind"] for row in session.receipts()] == ["fresh"]


def test_supervisor_frozen_past_its_lease_can_neither_write_nor_command(deployment: Deployment) -> None:
    with fleet(deployment) as made:
        first, session = start_working_session(made, deployment, "work 40")
        second = made.supervisor("second")
        slept, old = first.boot_id, session.execution["generation"]
        first.signal(signal.SIGSTOP)
        before = session.execution

        eventually(lambda: second.holds(session), timeout=60, describe="the second supervisor takes over")
        after = session.execution
        taken_at = datetime.fromisoformat(after["lease_expires_at"]) - timedelta(seconds=6)
        assert taken_at >= datetime.fromisoformat(before["lease_expires_at"]), "the lease had not expired"
        assert after["generation"] > old
        text = session.agent_text()
        eventually(lambda: len(session.agent_text()) > len(text), describe="the second supervisor writes the log")

        first.signal(signal.SIGCONT)

        eventually(
            lambda: last_heartbeat(deployment, slept) > before["lease_expires_at"],
            describe="the first supervisor is back",
        )
        eventually(
            lambda: any(word in first.log for word in FENCED),
            describe="the first supervisor knows that it lost its lease",
        )
        assert prompt_with_generation(session, old) == (409, "stale_generation")
        check_only_turn(session)
        assert session.execution["owner"] == second.boot_id
        assert session.execution["generation"] == after["generation"]
        assert [row["kind"] for row in session.receipts()] == ["fresh", "reattached"]
        assert first.process.poll() is None


def last_heartbeat(deployment: Deployment, boot_id: str) -> str:
    """Return when a supervisor last sent a heartbeat."""
    return str(deployment.rows("SELECT beat_at FROM supervisors WHERE boot_id = ?", boot_id)[0]["beat_at"])


def prompt_with_generation(session: Session, generation: int) -> tuple[int, str]:
    """Return what agentctl answers to a prompt of that generation: status and code."""
    token = (session.deployment.data / "agentctl" / session.execution_id / "token").read_text()
    url = session.execution["agentctl_url"]
    client = AgentctlClient(url, token, session.execution_id, generation=generation)
    with pytest.raises(AgentctlRefused) as refused:
        asyncio.run(client.prompt("from-the-past", "work 1"))
    return refused.value.status, refused.value.refusal


def test_execution_on_another_machine_is_left_to_its_own_supervisor(deployment: Deployment) -> None:
    with fleet(deployment) as made:
        first, session = start_working_session(made, deployment, "work 1")
        check_only_turn(session)
        first.signal(signal.SIGTERM)
        here = session.execution["host_id"]
        moved = "UPDATE executors_running SET host_id = ? WHERE id = ?"
        deployment.change(moved, "another machine", session.execution["id"])
        session.prompt("work 1")
        before, names, processes = session.execution, session.names(), session.processes()

        stranger = made.supervisor("stranger")
        busy = deployment.start_session("work 1")
        check_only_turn(busy)
        deployment.recover()

        assert (session.execution, session.names(), session.processes()) == (before, names, processes)
        assert [row["state"] for row in session.prompts()] == ["done", "queued"]
        assert stranger.holds(busy)

        deployment.change(moved, here, session.execution["id"])
        eventually(lambda: [row["state"] for row in session.prompts()] == ["done", "done"])


def test_two_supervisors_start_each_session_once(deployment: Deployment) -> None:
    with fleet(deployment) as made:
        for name in ("first", "second"):
            made.supervisor(name)
        sessions = [deployment.start_session("work 1") for _ in range(4)]
        for session in sessions:
            check_only_turn(session)
            assert [row["kind"] for row in session.receipts()] == ["fresh"]
            assert session.row["start_attempts"] <= 1


def test_database_restart_interrupts_no_turn(deployment: Deployment) -> None:
    server = postgresql.Server()
    server.start()
    try:
        deployment.env[DATABASE_URL] = server.new_database()
        deployment.data.rename(deployment.home / "unused")
        (deployment.home / "repository").rename(deployment.home / "unused-repository")
        deployment.prepare()
        deployment.serve()
        session = deployment.start_session("work 4")
        wait_until_talking(session)

        server.stop()
        eventually(lambda: not deployment.is_ready(), describe="the web process reports that the database is gone")
        server.start()

        check_only_turn(session)
        session.prompt("work 1")
        eventually(lambda: [row["state"] for row in session.prompts()] == ["done", "done"], timeout=60)
        assert "session.run.interrupted" not in session.names()
        assert session.names().count("session.run.completed") == 2
    finally:
        deployment.close()
        server.close()
