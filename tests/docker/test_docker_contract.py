"""The runtime on Docker meets the runtime contract on a real engine."""

from __future__ import annotations

from tests.executors.contract import RuntimeContract
from tests.executors.shared_worktrees import SharedWorktreesContract


class TestLocalDocker(RuntimeContract):
    """The contract on ``local_docker``."""


class TestSharedInContainers(SharedWorktreesContract):
    """``local_docker``: sessions that work in one worktree."""
