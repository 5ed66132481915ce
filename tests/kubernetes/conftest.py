"""Fixtures: one cluster for all tests of a process."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.kubernetes.cluster import Cluster
from tests.services import require

RUNNING_CLUSTER: Final = "TEST_KUBERNETES"
"""Environment variable with the directory of a running cluster, so that a developer need not wait for one."""


@cache
def _started() -> Cluster:
    """Return the only cluster of this process; it ends with the process."""
    running = os.environ.get(RUNNING_CLUSTER)
    if running:
        directory = Path(tempfile.mkdtemp(prefix="kandev-kubernetes-"))
        atexit.register(shutil.rmtree, directory)
        return Cluster(Path(running)).join(directory)
    made = Cluster(Path(tempfile.mkdtemp(prefix="kandev-kubernetes-", dir="/tmp")))
    atexit.register(made.close)
    made.start(ends_with_us=True)
    return made


@pytest.fixture(scope="session")
def shared_cluster() -> Cluster:
    """Return the cluster, started once; tests repair what they break."""
    require("kubernetes")
    return _started()


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """Return the cluster with both nodes ready, whatever an earlier test did to it."""
    shared_cluster.ensure()
    return shared_cluster
