"""``docker kill`` in mid-turn, and an agent that dies at every start in a container: the same as on this machine."""

from __future__ import annotations

from typing import Any

from executors_app.runtimes.containers.sites import container_name
from tests.docker.deployment import DockerDeployment
from tests.drills.deployment import Session
from tests.drills.session_steps import continue_prompts, wait_until_talking
from tests.waiting import eventually

DIES: dict[str, Any] = {"command": ["sh", "-c", "echo no licence found >&2; exit 3"]}

SHORTEN_TOKENS = """
from executors_app.models import ExecutorRunning
ExecutorRunning.objects.update(auth_token="short")
"""
"""A token that is too short, at which the next agentctl exits immediately."""


def kill_container(deployment: DockerDeployment, session: Session) -> None:
    """Kill the session's container as ``docker kill`` does."""
    client = deployment.engine.client()
    try:
        client.kill(container_name(session.execution_id))
    finally:
        client.close()


def test_killed_container_returns_and_its_turn_continues_once(deployment: DockerDeployment) -> None:
    deployment.env["KANDEV_RECONCILE_INTERVAL"] = "600"  # no periodic sweep helps
    deployment.serve()
    session = deployment.start_session("remember heron")
    session.wait_for("WAITING_FOR_INPUT", timeout=90)
    session.prompt("work 60")
    wait_until_talking(session)
    kill_container(deployment, session)
    eventually(lambda: "session.run.interrupted" in session.names(), describe="the death is noticed")
    eventually(
        lambda: [row["state"] in ("delivered", "done") for row in continue_prompts(session)] == [True],
        timeout=90,
        describe="the continue prompt is delivered",
    )
    assert session.names().count("session.run.interrupted") == 1
    assert session.names().count("session.restart_ordered") == 1


def test_session_that_always_dies_is_given_up_and_others_continue(deployment: DockerDeployment) -> None:
    deployment.env |= {"KANDEV_RESTART_DELAY": "0.4", "KANDEV_BOOT_GRACE": "0"}
    deployment.serve()
    bad = deployment.start_session("do it", DIES)
    good = deployment.start_session("remember heron", executor=deployment.on_this_machine)
    good.wait_for("WAITING_FOR_INPUT", timeout=60)
    bad.wait_for("FAILED", timeout=120)
    assert [row["kind"] for row in bad.receipts()] == ["failed"] * 6, "the user's start and five automatic ones failed"
    assert "no licence found" in bad.status()["error_message"]


def test_container_that_always_exits_is_given_up_with_its_log(
    deployment: DockerDeployment,
) -> None:
    deployment.env |= {"KANDEV_RESTART_DELAY": "0.2", "KANDEV_BOOT_GRACE": "0"}
    deployment.serve()
    session = deployment.start_session("remember heron")
    session.wait_for("WAITING_FOR_INPUT", timeout=90)
    done = deployment.manage("shell", "-v", "0", "-c", SHORTEN_TOKENS)
    assert done.returncode == 0, done.stderr
    kill_container(deployment, session)

    session.wait_for("FAILED", timeout=180)
    assert [row["kind"] for row in session.receipts()][-5:] == ["failed"] * 5, "five automatic starts failed"
    assert "token needs at least" in session.status()["error_message"]
    items = deployment.rows("SELECT kind FROM attention_items WHERE resolved_at IS NULL AND kind <> 'idle'")
    assert [row["kind"] for row in items] == ["gave_up"], "besides the idle item of the unread turn"
    beside = deployment.start_session("remember walrus", executor=deployment.on_this_machine)
    beside.wait_for("WAITING_FOR_INPUT", timeout=60)
