"""The runtime on Kubernetes meets the runtime contract, on the stand-in."""

from __future__ import annotations

import pytest

from tests.kubernetes.standin.pod_contract import PodContract

pytestmark = pytest.mark.any_database


class TestStandIn(PodContract):
    """The contract on ``kubernetes``."""
