"""A Docker engine for the tests with the image built in it, and launches that are removed afterwards."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from executors_app.wire.executions import Launched, LaunchSpec
from tests.docker.deployment import DockerDeployment
from tests.docker.engine import IMAGE, Engine, build_image
from tests.docker.harness import DockerHarness
from tests.docker.remote_engine import RemoteEngine, RemoteEngineHarness
from tests.drills.conftest import pytest_runtest_makereport  # noqa: F401 - a hook
from tests.executors.harness import spec_for
from tests.executors.repositories import make_repository
from tests.services import require

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests here with ``docker``: they are slow and the same on every database."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("docker")


@cache
def _started(kind: type[Any]) -> Any:
    """Return the only engine of its class in this process, with the image; it ends with the process.

    A session fixture would start another one for each test area that imports it.
    """
    made = kind()
    atexit.register(made.close)
    made.start()
    build_image(made)
    return made


@pytest.fixture(scope="session")
def shared_engine() -> Engine:
    """Return the local engine, started once; tests that end it start it again."""
    require("docker")
    engine: Engine = _started(Engine)
    return engine


@pytest.fixture(scope="session")
def shared_remote_engine() -> RemoteEngine:
    """Return a second engine, which is reached only over TLS."""
    require("docker")
    engine: RemoteEngine = _started(RemoteEngine)
    return engine


@pytest.fixture
def remote_engine(shared_remote_engine: RemoteEngine) -> RemoteEngine:
    """Return the remote engine, running, whatever an earlier test did to it."""
    shared_remote_engine.ensure()
    return shared_remote_engine


@pytest.fixture
def remote_harness(remote_engine: RemoteEngine, tmp_path: Path, settings: Any) -> Iterator[RemoteEngineHarness]:
    """Yield a harness for executions on the remote engine, removed afterwards; there is no local engine."""
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    settings.KANDEV_DOCKER_HOST = "unix:///nowhere/docker.sock"
    settings.KANDEV_AGENTCTL_IMAGE = IMAGE
    made = RemoteEngineHarness(make_repository(tmp_path / "repository"), remote_engine)
    yield made
    remote_engine.ensure()
    made.close()


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    """Return the local engine, running, whatever an earlier test did to it."""
    shared_engine.ensure()
    return shared_engine


@pytest.fixture
def local_harness(engine: Engine, tmp_path: Path, settings: Any) -> Iterator[DockerHarness]:
    """Yield a harness for executions in containers of the local engine, removed afterwards."""
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    settings.KANDEV_DOCKER_HOST = engine.url
    settings.KANDEV_AGENTCTL_IMAGE = IMAGE
    made = DockerHarness(make_repository(tmp_path / "repository"), engine)
    yield made
    engine.ensure()
    made.close()


@pytest.fixture
def harness(local_harness: DockerHarness) -> DockerHarness:
    """Return the harness of the local engine; modules may override this fixture."""
    return local_harness


@pytest.fixture
def spec(harness: DockerHarness) -> LaunchSpec:
    """Return the spec of a launch that has not been started."""
    return spec_for(harness)


@pytest.fixture
async def launched(harness: DockerHarness, spec: LaunchSpec) -> Launched:
    """Start the launch described by ``spec`` and return it."""
    return await harness.runtime.launch(spec)


@pytest.fixture
def deployment(engine: Engine, tmp_path: Path) -> Iterator[DockerDeployment]:
    """Yield a prepared Kandev, not yet serving, whose sessions run in containers."""
    made = DockerDeployment(tmp_path, engine)
    made.prepare()
    yield made
    made.close()
    engine.ensure()
    DockerHarness(made.repository, engine).close()
