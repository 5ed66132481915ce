"""The runtime on Docker keeps the contract, with a real engine."""

from __future__ import annotations

from tests.executors.contract import RuntimeContract
from tests.executors.shared_worktrees import SharedWorktreesContract


class TestLocalDocker(RuntimeContract):
    """``local_docker``."""


class TestSharedInContainers(SharedWorktreesContract):
    """``local_docker``: sessions that work in one worktree."""
