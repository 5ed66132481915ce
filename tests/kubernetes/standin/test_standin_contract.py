"""The runtime on Kubernetes meets the runtime contract, on the stand-in."""

from __future__ import annotations

import pytest

from tests.executors.contract import RuntimeContract

pytestmark = pytest.mark.any_database


class TestStandIn(RuntimeContract):
    """The contract on ``kubernetes``; only a Pod can look at a volume, so no observation does."""

    observes_workspaces = False
