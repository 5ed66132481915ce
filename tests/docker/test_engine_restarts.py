"""The engine itself ends, hangs and comes back while sessions run in its containers."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from executors_app.machine.process.identity import ProcessIdentity
from tests.docker.deployment import DockerDeployment
from tests.drills.deployment import Session
from tests.drills.session_steps import wait_for_first_turn, wait_until_talking
from tests.waiting import eventually

TIMEOUT = 6
CONTAINER_ACTIONS = {"create", "start", "restart", "stop", "kill", "die", "destroy", "pause", "unpause"}


def wait_until_idle(session: Session) -> Session:
    """Wait until the session's first turn is over."""
    wait_for_first_turn(session)
    session.wait_for("WAITING_FOR_INPUT")
    return session


def lasting_processes(session: Session) -> list[ProcessIdentity]:
    """Return its agentctl, guard and agent, once no short-lived git or health check runs beside them."""

    def three() -> list[ProcessIdentity] | None:
        found = session.processes()
        return found if len(found) == 3 else None

    found = eventually(three, describe="only agentctl, guard and agent run")
    assert found is not None
    return found


def row_of(document: dict[str, Any], session: Session) -> dict[str, Any]:
    """Return a session's entry in the document of a sweep."""
    return next(row for row in document["sessions"] if row["session_id"] == session.id)


def has_resumed(session: Session) -> bool:
    """Return whether its last start restored the conversation."""
    receipts = session.receipts()
    return bool(receipts) and receipts[-1]["kind"] in ("loaded", "resumed")


@pytest.mark.parametrize("how", ["hangs", "is stopped"])
def test_unreachable_engine_makes_only_its_sessions_unreachable(deployment: DockerDeployment, how: str) -> None:
    engine = deployment.engine
    engine.stop()
    engine.start(live_restore=True)
    deployment.env |= {"KANDEV_SWEEP_TIMEOUT": str(TIMEOUT), "KANDEV_LEASE_TTL": "3"}
    deployment.serve()
    inside = [wait_until_idle(deployment.start_session("remember walrus")) for _ in range(2)]
    here = wait_until_idle(deployment.start_session("remember otter", executor=deployment.on_this_machine))
    deployment.kill_server()
    before = [lasting_processes(session) for session in (*inside, here)]
    away_since = time.time()
    if how == "hangs":
        engine.freeze()
    else:
        engine.stop()

    document = deployment.recover()

    assert document["duration_ms"] < (TIMEOUT + 1.5) * 1000, "the check takes little longer than the timeout"
    for session in inside:
        row = row_of(document, session)
        assert (row["observed"], row["reason"]) == ("unknown", "runtime_unavailable")
        assert (session.row["state"], session.row["error_code"]) == ("ERROR", "unreachable")
        assert session.execution["status"] == "error"
        assert session.execution["resume_token"]
    assert row_of(document, here)["receipt_kind"] == "reattached"
    reattached = datetime.fromisoformat(here.receipts()[-1]["created_at"]).replace(tzinfo=UTC)
    took = reattached - datetime.fromisoformat(document["started_at"])
    assert took.total_seconds() < TIMEOUT / 2, "other requests do not wait for the engine"
    assert here.row["state"] == "WAITING_FOR_INPUT"
    assert [lasting_processes(session) for session in (*inside, here)] == before

    if how == "hangs":
        engine.thaw()
    else:
        engine.start(live_restore=True)
    assert not [
        event for event in engine.events(away_since) if event[0] == "container" and event[1] in CONTAINER_ACTIONS
    ]
    healed = deployment.recover()

    assert [row_of(healed, session)["observed"] for session in inside] == ["alive", "alive"]
    assert [session.row["state"] for session in inside] == ["WAITING_FOR_INPUT"] * 2
    assert [lasting_processes(session) for session in (*inside, here)] == before


def test_engine_restart_with_live_restore_interrupts_no_turn(deployment: DockerDeployment) -> None:
    engine = deployment.engine
    engine.stop()
    engine.start(live_restore=True)
    deployment.serve()
    session = deployment.start_session("work 12")
    session.wait_for("RUNNING")
    wait_until_talking(session)
    before = lasting_processes(session)

    engine.stop()
    log = session.agent_log()
    eventually(lambda: len(session.agent_log()) > len(log), describe="the agent keeps writing")
    engine.start(live_restore=True)

    eventually(lambda: "session.run.completed" in session.names(), timeout=90, describe="the turn has completed")
    session.wait_for("WAITING_FOR_INPUT")
    assert lasting_processes(session) == before
    assert session.agent_text() == session.agent_log()
    assert session.names().count("session.run.started") == 1


def test_sessions_return_after_an_engine_restart_without_live_restore(deployment: DockerDeployment) -> None:
    engine = deployment.engine
    deployment.env["KANDEV_CONTINUE"] = "off"
    deployment.serve()
    session = wait_until_idle(deployment.start_session("remember walrus"))
    container = session.execution["container_id"]
    session.prompt("work 60")
    session.wait_for("RUNNING")

    engine.stop()
    eventually(lambda: not session.processes(), describe="the container stops with the engine")
    engine.start()

    eventually(lambda: has_resumed(session), timeout=90, describe="the agent has resumed its conversation")
    session.wait_for("WAITING_FOR_INPUT")
    assert session.execution["container_id"] == container, "the same container was started again"
    assert session.names().count("session.run.interrupted") == 1
    session.prompt("what was the word?")
    eventually(lambda: session.agent_text().count("walrus") == 2, timeout=60, describe="the agent knows the word")


def test_sessions_return_after_the_engine_was_killed(deployment: DockerDeployment) -> None:
    engine = deployment.engine
    deployment.serve()
    session = wait_until_idle(deployment.start_session("remember walrus"))
    deployment.kill_server()
    engine.kill()
    engine.start()

    deployment.serve()

    eventually(lambda: has_resumed(session), timeout=90, describe="the agent has resumed its conversation")
    session.wait_for("WAITING_FOR_INPUT")
    assert session.agent_text() == session.agent_log()
