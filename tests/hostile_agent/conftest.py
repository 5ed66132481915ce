"""The runtimes of the other suites, and what lies beside the session that an attack must not reach."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docker.conftest import (  # noqa: F401 - fixtures
    engine,
    local_harness,
    remote_engine,
    remote_harness,
    shared_engine,
    shared_remote_engine,
)
from tests.docker.harness import DockerHarness
from tests.hostile_agent.world import World

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here: it is slow, and the same on every database."""
    for item in items:
        if item.path.is_relative_to(HERE) and "sprites_api" not in getattr(item, "fixturenames", ()):
            item.add_marker("docker")


@pytest.fixture
def runtime_name() -> str:
    """Tests of several runtimes are told which."""
    return "local_docker"


@pytest.fixture
def harness(request: pytest.FixtureRequest, runtime_name: str) -> DockerHarness:
    """Containers on this machine's engine, or on another's."""
    name = {"local_docker": "local_harness", "remote_docker": "remote_harness"}[runtime_name]
    found: DockerHarness = request.getfixturevalue(name)
    return found


@pytest.fixture
def world(harness: DockerHarness, tmp_path: Path, settings: Any) -> Iterator[World]:
    """Canaries, and another session with work that has arrived."""
    made = World(harness, tmp_path, Path(settings.KANDEV_DATA_DIR))
    asyncio.run(made.begin())
    yield made
