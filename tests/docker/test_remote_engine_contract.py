"""The runtime on another machine's engine keeps the contract, over TLS."""

from __future__ import annotations

import pytest

from tests.docker.remote_engine import RemoteEngineHarness
from tests.executors.contract import RuntimeContract


@pytest.fixture
def harness(remote_harness: RemoteEngineHarness) -> RemoteEngineHarness:
    """The other engine."""
    return remote_harness


class TestRemoteDocker(RuntimeContract):
    """``remote_docker``."""
