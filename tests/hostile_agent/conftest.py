"""The runtimes of the other test areas, and the scenario that an attack must not reach."""

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
from tests.hostile_agent.scenario import AttackScenario

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests without a mark: they are slow, the same on every database, and most of them use containers."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("any_database") is None:
            is_sprite = "sprites_api" in getattr(item, "fixturenames", ())
            item.add_marker("any_database" if is_sprite else "docker")


@pytest.fixture
def runtime_name() -> str:
    """Return the runtime; tests of several runtimes override it with a parameter."""
    return "local_docker"


@pytest.fixture
def harness(request: pytest.FixtureRequest, runtime_name: str) -> DockerHarness:
    """Return a harness for containers on the local or a remote engine."""
    name = {"local_docker": "local_harness", "remote_docker": "remote_harness"}[runtime_name]
    harness: DockerHarness = request.getfixturevalue(name)
    return harness


@pytest.fixture
def scenario(harness: DockerHarness, tmp_path: Path, settings: Any) -> Iterator[AttackScenario]:
    """Yield a host with canaries, and another session whose work is stored."""
    scenario = AttackScenario(harness, tmp_path, Path(settings.KANDEV_DATA_DIR))
    asyncio.run(scenario.prepare())
    yield scenario
