"""Sessions in containers that work in one worktree, with a real engine."""

from __future__ import annotations

from tests.executors.shared_worktrees import SharedWorktreesContract


class TestSharedInContainers(SharedWorktreesContract):
    """``local_docker``."""
