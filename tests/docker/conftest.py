"""An engine of the tests' own with the image built in it, and launches that leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executors_app.domain import Launched, LaunchSpec
from tests.docker.deployment import DockerDeployment
from tests.docker.engine import IMAGE, Engine, build_image
from tests.docker.harness import DockerPlace
from tests.docker.remote_engine import FarEngine, FarPlace
from tests.drills.conftest import pytest_runtest_makereport  # noqa: F401 - a hook
from tests.executors.harness import spec_for
from tests.executors.repositories import make_repository
from tests.services import require

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here: it is slow, and the same on every database."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("docker")


@pytest.fixture(scope="session")
def shared_engine() -> Iterator[Engine]:
    """Started once; tests that end it start it again."""
    require("docker")
    engine = Engine()
    try:
        engine.start()
        build_image(engine)
        yield engine
    finally:
        engine.close()


@pytest.fixture(scope="session")
def shared_far_engine() -> Iterator[FarEngine]:
    """Another one, which is reached over TLS alone."""
    require("docker")
    engine = FarEngine()
    try:
        engine.start()
        build_image(engine)
        yield engine
    finally:
        engine.close()


@pytest.fixture
def far_engine(shared_far_engine: FarEngine) -> FarEngine:
    """The other engine, running, whatever the test before did to it."""
    shared_far_engine.ensure()
    return shared_far_engine


@pytest.fixture
def far_place(far_engine: FarEngine, tmp_path: Path, settings: Any) -> Iterator[FarPlace]:
    """Executions over there, removed afterwards; this machine has no engine at all."""
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    settings.KANDEV_DOCKER_HOST = "unix:///nowhere/docker.sock"
    settings.KANDEV_AGENTCTL_IMAGE = IMAGE
    made = FarPlace(make_repository(tmp_path / "repository"), far_engine)
    yield made
    far_engine.ensure()
    made.close()


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    """The engine, running, whatever the test before did to it."""
    shared_engine.ensure()
    return shared_engine


@pytest.fixture
def near_place(engine: Engine, tmp_path: Path, settings: Any) -> Iterator[DockerPlace]:
    """Executions in containers, removed afterwards."""
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    settings.KANDEV_DOCKER_HOST = engine.url
    settings.KANDEV_AGENTCTL_IMAGE = IMAGE
    made = DockerPlace(make_repository(tmp_path / "repository"), engine)
    yield made
    engine.ensure()
    made.close()


@pytest.fixture
def place(near_place: DockerPlace) -> DockerPlace:
    """This machine's engine, unless a module says otherwise."""
    return near_place


@pytest.fixture
def spec(place: DockerPlace) -> LaunchSpec:
    """A launch that nobody has made yet."""
    return spec_for(place)


@pytest.fixture
async def launched(place: DockerPlace, spec: LaunchSpec) -> Launched:
    """That launch, made."""
    return await place.runtime.launch(spec)


@pytest.fixture
def deployment(engine: Engine, tmp_path: Path) -> Iterator[DockerDeployment]:
    """A Kandev of its own whose sessions run in containers, prepared and not yet served."""
    made = DockerDeployment(tmp_path, engine)
    made.prepare()
    yield made
    made.close()
    engine.ensure()
    DockerPlace(made.repository, engine).close()
