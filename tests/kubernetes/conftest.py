"""Fixtures: one cluster for all tests of a process."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from executors_app.runtimes.kubernetes import launch
from tests.drills.conftest import pytest_runtest_makereport  # noqa: F401 - a hook
from tests.executors.repositories import make_repository
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.harness import KubernetesHarness
from tests.services import require

RUNNING_CLUSTER: Final = "TEST_KUBERNETES"
"""Environment variable with the directory of a running cluster, so that a developer need not wait for one."""


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    """Yield the cluster, started once; tests repair what they break."""
    require("kubernetes")
    running = os.environ.get(RUNNING_CLUSTER)
    directory = Path(tempfile.mkdtemp(prefix="kandev-kubernetes-", dir="/tmp"))
    if running:
        yield Cluster(Path(running)).join(directory)
        shutil.rmtree(directory)
        return
    made = Cluster(directory)
    try:
        made.start(ends_with_us=True)
        yield made
    finally:
        made.close()


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """Return the cluster with both nodes ready, whatever an earlier test did to it."""
    shared_cluster.ensure()
    return shared_cluster


@pytest.fixture
def harness(
    cluster: Cluster, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KubernetesHarness]:
    """Yield a harness for sessions in Pods of the cluster, removed afterwards."""
    # A node of this age may let the object of an ended Pod go a minute late; users see that the start is tried again.
    monkeypatch.setattr(launch, "ENDING_TIMEOUT", 180.0)
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    made = KubernetesHarness(make_repository(tmp_path / "repository"), cluster)
    made.close()  # what an earlier run left would hold up a drain
    with made.collecting_garbage():
        yield made
    made.close()
