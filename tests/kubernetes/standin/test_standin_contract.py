"""The runtime on Kubernetes meets the runtime contract, on the stand-in."""

from __future__ import annotations

from tests.kubernetes.standin.pod_contract import PodContract


class TestStandIn(PodContract):
    """The contract on ``kubernetes``."""
