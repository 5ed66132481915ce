"""The runtime on another machine's engine keeps the contract, over TLS."""

from __future__ import annotations

import pytest

from tests.docker.remote_engine import FarPlace
from tests.executors.contract import RuntimeContract


@pytest.fixture
def place(far_place: FarPlace) -> FarPlace:
    """The other engine."""
    return far_place


class TestRemoteDocker(RuntimeContract):
    """``remote_docker``."""
