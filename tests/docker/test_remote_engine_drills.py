"""The restart drills, with sessions on another machine's engine over TLS."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from executors_app.repositories import bare
from executors_app.runtimes.containers import sites
from executors_app.runtimes.deployment_labels import MANAGED_LABEL
from tests.docker.engine import IMAGE
from tests.docker.remote_engine import RemoteEngine, RemoteEngineHarness
from tests.docker.remote_engine_deployment import RemoteEngineDeployment, RemoteEngineSession
from tests.drills.deployment import Deployment, Session
from tests.drills.restart_drills import RestartDrills
from tests.drills.session_steps import wait_for_first_turn
from tests.executors.repositories import run_git
from tests.waiting import eventually


@pytest.fixture
def deployment(remote_engine: RemoteEngine, tmp_path: Path) -> Iterator[RemoteEngineDeployment]:
    """Yield a prepared Kandev, not yet serving, whose sessions run on the remote engine."""
    made = RemoteEngineDeployment(tmp_path, remote_engine)
    made.prepare()
    yield made
    made.close()


class TestRestartsOnRemoteEngine(RestartDrills):
    """Drills on ``remote_docker``."""

    def lose_workspace(self, deployment: Deployment, session: Session) -> None:
        """Remove the worktree and the branch from the session's volume."""
        assert isinstance(session, RemoteEngineSession)
        lost = session.row
        shutil.rmtree(session.seen(lost["worktree_path"]))
        engine = session.deployment.engine
        RemoteEngineHarness(deployment.repository, engine).forget(lost["worktree_branch"], session.id)


def test_workspace_of_a_lost_volume_is_rebuilt_from_the_archive(
    deployment: RemoteEngineDeployment,
) -> None:
    deployment.serve()
    session = deployment.start_session("write kept.txt hello")
    wait_for_first_turn(session)
    session.wait_for("WAITING_FOR_INPUT")
    row = session.row
    eventually(
        lambda: "kept.txt" in arrived_files(deployment.repository, session.id),
        describe="the file has arrived",
    )
    deployment.kill_server()
    session.kill_everything()
    RemoteEngineHarness(deployment.repository, deployment.engine).close()

    deployment.recover()

    receipt = session.receipts()[-1]
    assert receipt["kind"] == "failed", "the agent's home was deleted with the volumes"
    assert "was removed. It was rebuilt from the snapshot of" in receipt["evidence"]["workspace_rebuilt"]
    assert session.seen(row["worktree_path"]).joinpath("kept.txt").read_text() == "hello\n"


def stay_idle(session: RemoteEngineSession) -> None:
    """Leave the session's agentctl running."""


def stop_session(session: RemoteEngineSession) -> None:
    """Stop the session and remove the helper container that an earlier kill left under its name."""
    session.deployment.api("POST", f"{session.path}/stop/", {})
    eventually(lambda: session.execution["status"] == "stopped", timeout=60, describe="the session is stopped")
    client = session.deployment.engine.client()
    labels = {MANAGED_LABEL: "true", sites.HELPER_LABEL: session.execution_id}
    client.create_container(IMAGE, name=f"{sites.container_name(session.execution_id)}-work", labels=labels)
    client.close()


@pytest.mark.parametrize("then", [stay_idle, stop_session])
def test_work_arrives_after_a_kill_at_the_end_of_a_turn(
    deployment: RemoteEngineDeployment, then: Callable[[RemoteEngineSession], None]
) -> None:
    deployment.serve()
    session = deployment.start_session("work 1")
    wait_for_first_turn(session)
    session.wait_for("WAITING_FOR_INPUT")
    eventually(
        lambda: arrived_files(deployment.repository, session.id),
        timeout=60,
        describe="the first turn's work has arrived",
    )
    with bare.repository_lock(deployment.data / "archives" / f"{session.id}.git", folder=True):
        # Nothing can enter the archive now: the bundle of this turn is still on its way when everything is killed.
        session.prompt("write kept.txt hello")
        eventually(lambda: is_due(session), timeout=60, describe="the second turn's snapshot is due")
        session.wait_for("WAITING_FOR_INPUT")
        then(session)
        deployment.kill_server()
    assert "kept.txt" not in arrived_files(deployment.repository, session.id)
    assert is_due(session)
    turns = session.names().count("session.run.completed")

    deployment.serve()

    eventually(
        lambda: "kept.txt" in arrived_files(deployment.repository, session.id),
        timeout=120,
        describe="the file has arrived",
    )
    eventually(lambda: not is_due(session), timeout=60, describe="no snapshot is due")
    assert session.status()["snapshot_transfer"] is None
    assert session.names().count("session.run.completed") == turns, "no further turn was needed"
    eventually(lambda: helpers_of(session) == [], timeout=60, describe="no helper container is left")


def is_due(session: RemoteEngineSession) -> bool:
    """Return whether its newest snapshot was announced and has not arrived."""
    row = session.execution
    return bool(row["snapshot_announced"] != row["snapshot_arrived"])


def helpers_of(session: RemoteEngineSession) -> list[str]:
    """Return the names of the short-lived containers beside its own."""
    client = session.deployment.engine.client()
    try:
        found = [name for one in client.containers(all=True) for name in one["Names"]]
    finally:
        client.close()
    return [name for name in found if name.startswith(f"/{sites.container_name(session.execution_id)}-")]


def arrived_files(repository: Path, session_id: str) -> list[str]:
    """Return the files of the session's last snapshot in the team's repository."""
    ref = f"refs/kandev/recovery/{session_id}"
    there = run_git(repository, "for-each-ref", ref)
    return run_git(repository, "ls-tree", "--name-only", ref).splitlines() if there else []
