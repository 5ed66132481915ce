"""Fixtures for agentctl tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.agentctl.running import Running, agentctl
from tests.executors.repositories import commit, run_git


@pytest_asyncio.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    """Yield a fresh agentctl without an agent."""
    async with agentctl(tmp_path) as fresh:
        yield fresh


@pytest_asyncio.fixture
async def started(running: Running) -> Running:
    """Return an agentctl whose agent is idle."""
    status, _ = await running.start()
    assert status == 200
    return running


@pytest.fixture
def repository(running: Running) -> Path:
    """Return the workspace of ``running`` as a repository with one commit."""
    run_git(running.workspace, "init", "--quiet")
    run_git(running.workspace, "config", "user.name", "Owner")
    run_git(running.workspace, "config", "user.email", "owner@example.org")
    commit(running.workspace, "README", "hello\n")
    return running.workspace
