"""A few sessions go on after their limits while the control plane dies at random; ``make chaos`` has fifty."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.deployment import ChaosDeployment
from tests.chaos.limit_drill import drill


def test_every_session_goes_on_once_under_random_kills(tmp_path: Path) -> None:
    deployment = ChaosDeployment(tmp_path, KANDEV_IDLE_SLEEP="2")
    try:
        deployment.prepare()
        assert drill(deployment, sessions=4, seed=7) == []
    finally:
        deployment.close()
