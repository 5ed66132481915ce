"""The restart drills, with sessions in sprites, and drills that only sprites have."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from executors_app.machine.git.recovery_snapshots import session_recovery_ref
from executors_app.machine.process import identity
from tests.drills.deployment import Deployment, Session
from tests.drills.restart_drills import RestartDrills, SecondSweepDrill
from tests.drills.session_steps import start_idle_session, wait_for_first_turn, wait_until_talking
from tests.executors.launches import only_agentctl
from tests.executors.repositories import run_git
from tests.sprites.deployment import SpritesDeployment, SpriteSession
from tests.sprites.fake_api import FakeSpritesApi
from tests.waiting import eventually

pytestmark = pytest.mark.any_database


@pytest.fixture
def deployment(sprites_api: FakeSpritesApi, tmp_path: Path) -> Iterator[SpritesDeployment]:
    """Yield a prepared Kandev, not yet serving, whose sessions run in sprites."""
    made = SpritesDeployment(tmp_path, sprites_api, tmp_path / "sprites")
    made.prepare()
    yield made
    made.close()


class TestRestartsInSprites(RestartDrills, SecondSweepDrill):
    """Drills on ``sprites``."""

    # A sprite may take longer to wake than a sweep waits for its answer; the result is then unknown.
    recovery_passes = 10

    def lose_workspace(self, deployment: Deployment, session: Session) -> None:
        """Remove the worktree, the branch and the snapshots on the disk of a session's sprite."""
        assert isinstance(session, SpriteSession)
        lost = session.row
        shutil.rmtree(lost["worktree_path"])
        repository = session.deployment.disks / session.execution_id / "work" / "repository.git"
        run_git(repository, "worktree", "prune")
        run_git(repository, "branch", "-D", lost["worktree_branch"])
        # Otherwise the snapshot may be transferred before the loss is noticed, and the worktree rebuilt from it.
        run_git(repository, "update-ref", "-d", session_recovery_ref(session.id))


def test_sprite_restarts_killed_agentctl_and_agent_resumes(
    deployment: SpritesDeployment,
) -> None:
    deployment.env["KANDEV_CONTINUE"] = "off"
    deployment.serve()
    session = deployment.start_session("remember walrus")
    wait_for_first_turn(session)
    session.prompt("work 30")
    session.wait_for("RUNNING")
    wait_until_talking(session)
    deployment.kill_server()
    agentctl = only_agentctl(session.execution_id)
    identity.send_signal(agentctl, signal.SIGKILL)
    deployment.serve()

    eventually(lambda: session.receipts()[-1]["kind"] == "loaded", timeout=60, describe="the agent is resumed")
    session.wait_for("WAITING_FOR_INPUT")
    assert [one["state"] for one in session.prompts()] == ["done", "interrupted"]
    assert session.names().count("session.run.interrupted") == 1
    assert only_agentctl(session.execution_id)


def test_cold_sprite_of_an_idle_agent_resumes_on_next_prompt(
    deployment: SpritesDeployment,
) -> None:
    deployment.env["KANDEV_RECOVERY_POLICY"] = "on_open"
    deployment.serve()
    session = start_idle_session(deployment)
    assert isinstance(session, SpriteSession)
    deployment.kill_server()
    deployment.sprites_api.do(session.machine.make_cold())
    wakes, receipts, starts = session.machine.wakes, session.receipts(), session.journal().count("agent.started")

    for _ in range(2):
        deployment.recover()
        assert session.machine.wakes == wakes + 1, "woken once, to read the journal of the dead agentctl"
    assert (session.receipts(), session.journal().count("agent.started")) == (receipts, starts)

    _prompt(session)
    assert session.journal().count("agent.started") == starts + 1


@pytest.mark.parametrize("sleep", ["warm", "cold"])
def test_sprite_of_stopped_agent_sleeps_until_next_prompt(deployment: SpritesDeployment, sleep: str) -> None:
    deployment.serve()
    session = start_idle_session(deployment)
    assert isinstance(session, SpriteSession)
    deployment.api("POST", f"{session.path}/stop/", {})
    eventually(lambda: session.execution["status"] == "stopped", describe="the session is stopped")
    eventually(lambda: not session.machine.tasks, describe="nothing keeps the sprite awake")
    deployment.kill_server()
    machine = session.machine
    deployment.sprites_api.do(machine.make_warm() if sleep == "warm" else machine.make_cold())
    wakes = machine.wakes

    for _ in range(2):
        deployment.recover()
        assert (machine.status, machine.wakes) == (sleep, wakes), "a sweep does not wake the sprite"

    _prompt(session)


def _prompt(session: SpriteSession) -> None:
    """Start the control plane and prompt: this one prompt wakes sprite and agent, and is delivered once."""
    deployment, machine = session.deployment, session.machine
    deployment.serve()
    session.prompt("what was the word?")
    eventually(lambda: session.agent_text().count("walrus") == 2, timeout=60, describe="the agent knows the word")
    session.wait_for("WAITING_FOR_INPUT")
    assert machine.status == "running"
    assert session.receipts()[-1]["kind"] == "loaded"
    assert [row["state"] for row in session.prompts()] == ["done", "done"]
