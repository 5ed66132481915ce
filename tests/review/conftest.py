"""Fixtures: a session whose workspace is served by a real agentctl, and a repository with a worktree."""

from tests.workspace.conftest import api, live, repository, served, worktree

__all__ = ["api", "live", "repository", "served", "worktree"]
