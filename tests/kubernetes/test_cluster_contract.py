"""The runtime on Kubernetes meets the contract of all runtimes on a real cluster."""

from __future__ import annotations

import pytest

from tests.executors.contract import RuntimeContract

pytestmark = pytest.mark.any_database


class TestKubernetes(RuntimeContract):
    """The contract on ``kubernetes``: what is on a volume, only a Pod can see."""

    observes_workspaces = False
