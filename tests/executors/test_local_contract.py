"""The runtime on this machine keeps the contract."""

from __future__ import annotations

from tests.executors.contract import RuntimeContract


class TestLocalStandalone(RuntimeContract):
    """``local_standalone``."""
