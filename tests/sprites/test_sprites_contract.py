"""The runtime on Sprites meets the runtime contract."""

from __future__ import annotations

from tests.executors.contract import RuntimeContract


class TestSprites(RuntimeContract):
    """The contract on ``sprites``."""
