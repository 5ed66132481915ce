"""A second machine, and a control plane that uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executors_app.wire.executions import Launched, LaunchSpec
from tests.drills.conftest import pytest_runtest_makereport  # noqa: F401 - a hook
from tests.executors.harness import spec_for
from tests.executors.repositories import make_repository
from tests.remote.deployment import RemoteDeployment
from tests.remote.harness import RemoteHarness
from tests.remote.machines import Machine


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


@pytest.fixture
def machine(tmp_path: Path, repository: Path) -> Iterator[Machine]:
    """Yield a running host daemon that serves the repository."""
    made = Machine(tmp_path / "machine", [str(repository)])
    made.start()
    yield made
    made.close()


@pytest.fixture
def harness(machine: Machine, repository: Path, tmp_path: Path, settings: Any) -> RemoteHarness:
    """Return a harness for executions on that machine."""
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    return RemoteHarness(machine, repository, tmp_path)


@pytest.fixture
def spec(harness: RemoteHarness) -> LaunchSpec:
    """Return the spec of a launch that has not been started."""
    return spec_for(harness)


@pytest.fixture
async def launched(harness: RemoteHarness, spec: LaunchSpec) -> Launched:
    """Start the launch described by ``spec`` and return it."""
    return await harness.runtime.launch(spec)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[RemoteDeployment]:
    """Yield a prepared Kandev, not yet serving, whose sessions run on another machine."""
    made = RemoteDeployment(tmp_path)
    try:
        made.prepare()
        yield made
    finally:
        made.close()
