"""The runtime on Docker keeps the contract, with a real engine."""

from __future__ import annotations

from tests.executors.contract import RuntimeContract


class TestLocalDocker(RuntimeContract):
    """``local_docker``."""
