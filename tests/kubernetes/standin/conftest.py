"""A stand-in for a cluster, and the runtime under test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.executors.repositories import make_repository
from tests.kubernetes.standin.cluster import StandIn
from tests.kubernetes.standin.harness import KubernetesHarness
from tests.services import require


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    """Yield an empty cluster."""
    require("kubernetes stand-in")
    with StandIn().serving() as cluster:
        yield cluster


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


@pytest.fixture
def harness(repository: Path, stand_in: StandIn, tmp_path: Path, settings: Any) -> KubernetesHarness:
    """Return the harness of the runtime, for sessions in Pods of the stand-in."""
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    return KubernetesHarness(repository, stand_in, tmp_path)
