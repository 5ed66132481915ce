"""A supervisor that is killed at any of its crash points loses nothing and does nothing twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from executors_app import crash_points
from tests.drills.deployment import Deployment, Session
from tests.waiting import eventually

SUPERVISOR_POINTS = sorted(point for point in crash_points.POINTS if point.startswith("supervisor."))

AGENTCTL_POINTS = sorted(point for point in crash_points.POINTS if point.startswith("agentctl."))
STATE_AFTER = {
    "agentctl.agent_spawned": "done",
    "agentctl.token_kept": "done",
    "agentctl.prompt_accepted": "held",
    "agentctl.prompt_delivered": "interrupted",
    "agentctl.turn_ended": "done",
}
"""What becomes of the first prompt when agentctl dies there."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One prepared Kandev for all points; each test serves it anew."""
    made = Deployment(tmp_path_factory.mktemp("crash"))
    made.prepare()
    yield made
    made.close()


def work_ask_cancel_stop(session: Session) -> None:
    """A session's whole life: a turn with a question, a turn that is cancelled, a stop."""
    deployment = session.deployment
    eventually(lambda: session.status()["pending_permissions"], timeout=60, describe="the agent asks")
    asked = deployment.api("GET", f"{session.path}/permissions/")["results"][0]
    answer = {"option_id": asked["options"][0]["option_id"]}
    deployment.api("POST", f"{session.path}/permissions/{asked['id']}/", answer)
    eventually(lambda: "session.run.completed" in session.names(), timeout=60, describe="the first turn ends")
    session.prompt("work 60")
    eventually(lambda: session.names().count("session.prompt.delivered") == 2, timeout=60, describe="the second turn")
    deployment.api("POST", f"{session.path}/cancel/", {})
    eventually(lambda: "session.run.cancelled" in session.names(), timeout=60, describe="the second turn is cancelled")
    deployment.api("POST", f"{session.path}/stop/", {})
    eventually(lambda: session.execution["status"] == "stopped", timeout=60, describe="the execution is stopped")


@pytest.mark.parametrize("point", SUPERVISOR_POINTS)
def test_a_supervisor_killed_at_a_crash_point_leaves_nothing_lost_and_nothing_twice(
    shared: Deployment, point: str
) -> None:
    reached = shared.home / f"reached-{point}"
    reached.mkdir()
    shared.serve({"KANDEV_CRASH_AT": point, "KANDEV_CRASH_DIR": str(reached)})
    try:
        session = shared.start_session("work 1\nask")
        work_ask_cancel_stop(session)

        assert (reached / point).exists(), "the supervisor never came to this point"
        assert session.agent_text() == session.said()
        names = session.names()
        assert (names.count("session.run.started"), names.count("session.run.interrupted")) == (2, 0)
        assert [row["state"] for row in session.prompts()] == ["done", "done"]
        assert session.journal().count('"kind":"agent.started"') == 1
        assert [row["kind"] for row in session.receipts()].count("fresh") <= 1
        assert "failed" not in [row["kind"] for row in session.receipts()]
        eventually(lambda: not session.processes(), describe="nothing of the session runs")
    finally:
        shared.kill_server()


@pytest.mark.parametrize("point", AGENTCTL_POINTS)
def test_an_agentctl_killed_at_a_crash_point_delivers_no_prompt_twice(shared: Deployment, point: str) -> None:
    reached = shared.home / f"reached-{point}"
    reached.mkdir()
    shared.serve({"KANDEV_CRASH_AT": point, "KANDEV_CRASH_DIR": str(reached), "KANDEV_CONTINUE": "off"})
    try:
        session = shared.start_session("remember walrus\nwork 1")
        eventually((reached / point).exists, timeout=60, describe=f"agentctl dies at {point}")
        settled = ("done", "interrupted", "held")
        eventually(lambda: session.prompts()[0]["state"] in settled, timeout=90, describe="its prompt is settled")
        session.wait_for("WAITING_FOR_INPUT")
        eventually(lambda: session.status()["is_agent_running"], timeout=90, describe="the agent is back")
        session.prompt("work 1")
        eventually(lambda: session.prompts()[1]["state"] == "done", timeout=60, describe="it works again")

        heard = "".join(path.read_text() for path in session.agent_home.glob("*.jsonl"))
        assert heard.count('"user", "text": "remember walrus') <= 1
        assert session.prompts()[0]["state"] == STATE_AFTER[point]
        assert session.names().count("session.run.interrupted") <= 1
    finally:
        shared.kill_server()
