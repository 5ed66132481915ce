"""The restart drills, with sessions in Pods of the stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from executors_app.runtimes.kubernetes.names import pod_name
from tests.drills.session_steps import check_only_turn
from tests.kubernetes.pod_deployment import PodDrills
from tests.kubernetes.standin.cluster import StandIn
from tests.kubernetes.standin.deployment import KubernetesDeployment
from tests.waiting import eventually

pytestmark = pytest.mark.any_database


@pytest.fixture
def deployment(stand_in: StandIn, tmp_path: Path) -> Iterator[KubernetesDeployment]:
    """Yield a prepared Kandev, not yet serving, whose sessions run in Pods."""
    made = KubernetesDeployment(tmp_path, stand_in)
    made.prepare()
    yield made
    made.close()


class TestRestartsInPods(PodDrills):
    """Drills on ``kubernetes``."""


def test_launch_survives_the_death_of_the_control_plane(deployment: KubernetesDeployment) -> None:
    calls = deployment.cluster.server.calls
    deployment.serve()
    session = deployment.start_session("remember walrus")
    # The Pod may write from now on, and has no seed.
    eventually(lambda: "patch persistentvolumeclaims" in calls, timeout=60, describe="the Pod is recorded")
    deployment.kill_server()
    deployment.serve()

    check_only_turn(session)
    assert calls.count("create pods") == 1
    assert [pod["metadata"]["name"] for pod in deployment.cluster.pods()] == [pod_name(session.id)]
