"""A complete Kandev whose sessions run in Pods of the stand-in."""

from __future__ import annotations

from pathlib import Path

from tests.kubernetes.pod_deployment import PodDeployment
from tests.kubernetes.standin.cluster import StandIn
from tests.kubernetes.standin.harness import KubernetesHarness


class KubernetesDeployment(PodDeployment):
    """A Kandev in which every session has a Pod of the stand-in."""

    pods: KubernetesHarness

    def __init__(self, home: Path, cluster: StandIn):
        super().__init__(home)
        self.cluster = cluster
        self.pods = KubernetesHarness(self.repository, cluster, home)
