"""Fixtures: a small repository, and launches on this machine that are always ended."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from executors_app.machine.process import execution_processes, identity
from executors_app.machine.storage import StateDirectory, state_directory
from executors_app.runtimes.local_standalone.runtime import RUNTIME
from executors_app.wire.executions import Launched, LaunchSpec
from tests.executors.launches import TOKEN
from tests.executors.local_harness import LocalHarness
from tests.executors.repositories import make_repository


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


@pytest.fixture
def data_directory(tmp_path: Path, settings: Any) -> Path:
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    return tmp_path / "data"


@pytest.fixture
def spec(repository: Path, data_directory: Path) -> Iterator[LaunchSpec]:
    """Yield the spec of a launch; everything that it started is ended afterwards."""
    wanted = LaunchSpec(
        execution_id=str(uuid.uuid4()),
        session_id=str(uuid.uuid4()),
        task_id=str(uuid.uuid4()),
        repository_path=str(repository),
        base_branch="",
        auth_token=TOKEN,
    )
    yield wanted
    processes = execution_processes.find_processes(wanted.execution_id)
    identity.kill_all([*processes.agentctl, *processes.others], 10)


@pytest.fixture
def directory(spec: LaunchSpec, data_directory: Path) -> StateDirectory:
    return state_directory(data_directory, spec.execution_id)


@pytest.fixture
async def launched(spec: LaunchSpec) -> AsyncIterator[Launched]:
    yield await RUNTIME.launch(spec)


@pytest.fixture
def harness(repository: Path, data_directory: Path, tmp_path: Path) -> Iterator[LocalHarness]:
    """Yield the harness of this machine, whose launches are ended whatever a test does."""
    made = LocalHarness(repository, tmp_path / "agent")
    yield made
    made.close(data_directory)
