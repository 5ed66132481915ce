"""The runtime on a remote engine meets the runtime contract over TLS."""

from __future__ import annotations

import pytest

from tests.docker.remote_engine import RemoteEngineHarness
from tests.executors.contract import RuntimeContract


@pytest.fixture
def harness(remote_harness: RemoteEngineHarness) -> RemoteEngineHarness:
    """Return the harness of the remote engine."""
    return remote_harness


class TestRemoteDocker(RuntimeContract):
    """The contract on ``remote_docker``."""
