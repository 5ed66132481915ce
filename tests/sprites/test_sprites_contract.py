"""The runtime on Sprites keeps the contract."""

from __future__ import annotations

from tests.executors.contract import RuntimeContract


class TestSprites(RuntimeContract):
    """``sprites``."""
