"""The restart drills, with sessions in Pods of a real cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.harness import KubernetesHarness
from tests.kubernetes.pod_deployment import PodDeployment, PodDrills

pytestmark = pytest.mark.any_database

PATIENCE = 300
"""Seconds of a recovery: it reads a volume with a Pod, whose name an old node frees some seconds after its end."""


class ClusterDeployment(PodDeployment):
    """A Kandev in which every session has a Pod of a real cluster."""

    pods: KubernetesHarness

    def __init__(self, home: Path, cluster: Cluster):
        super().__init__(home)
        self.pods = KubernetesHarness(self.repository, cluster)

    def manage(
        self, *args: str, env: Mapping[str, str] | None = None, timeout: float = PATIENCE + 60
    ) -> subprocess.CompletedProcess[str]:
        """Run one management command to its end."""
        return super().manage(*args, env=env, timeout=timeout)

    def recover(self, *args: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Run ``recover_sessions`` with enough patience for Pods; return its document."""
        return super().recover("--wait", str(PATIENCE), *args, env=env)


@pytest.fixture
def deployment(cluster: Cluster, tmp_path: Path) -> Iterator[ClusterDeployment]:
    """Yield a prepared Kandev, not yet serving, whose sessions run in Pods."""
    made = ClusterDeployment(tmp_path, cluster)
    made.prepare()
    with made.pods.collecting_garbage():
        yield made
    made.close()
    made.pods.close()


class TestRestartsInPods(PodDrills):
    """Drills on ``kubernetes``."""
