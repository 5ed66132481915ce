"""The places of the other suites, with something beside the session that an attack must not reach."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docker.conftest import (  # noqa: F401 - fixtures
    engine,
    far_engine,
    far_place,
    near_place,
    shared_engine,
    shared_far_engine,
)
from tests.docker.harness import DockerPlace
from tests.hostile_agent.world import World

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here: it is slow, and the same on every database."""
    for item in items:
        if item.path.is_relative_to(HERE) and "stand_in" not in getattr(item, "fixturenames", ()):
            item.add_marker("docker")


@pytest.fixture
def runtime_name() -> str:
    """Tests of several runtimes are told which."""
    return "local_docker"


@pytest.fixture
def place(request: pytest.FixtureRequest, runtime_name: str) -> DockerPlace:
    """Containers on this machine's engine, or on another's."""
    name = {"local_docker": "near_place", "remote_docker": "far_place"}[runtime_name]
    found: DockerPlace = request.getfixturevalue(name)
    return found


@pytest.fixture
def world(place: DockerPlace, tmp_path: Path, settings: Any) -> Iterator[World]:
    """Canaries, and another session with work that has arrived."""
    made = World(place, tmp_path, Path(settings.KANDEV_DATA_DIR))
    asyncio.run(made.begin())
    yield made
