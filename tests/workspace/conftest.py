"""Fixtures: a repository with one commit, and a worktree of a session in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rest_framework.test import APIClient

from executors_app.machine.git import worktrees
from executors_app.machine.git.worktrees import Worktree
from tests.api.world import client_of, make_world
from tests.executors.repositories import commit, make_repository
from tests.workspace.served import REAL, Place, Served, make_repository_in, point_at
from tests.workspace.trees import SESSION, add_submodule, start_session

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that are not about rows: files, git and shells are the same on every database."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("database") is None:
            item.add_marker("any_database")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


@pytest.fixture
def worktree(tmp_path: Path, repository: Path) -> Worktree:
    place = worktrees.session_worktree(tmp_path / "data", SESSION)
    worktrees.make_worktree(repository, "", place, existed=False)
    return place


@pytest.fixture
def library(tmp_path: Path) -> Path:
    made = make_repository(tmp_path / "library", "f.txt", "lib\n")
    commit(made, "g.txt", "lib\n")
    return made


@pytest.fixture
def place(repository: Path, library: Path, tmp_path: Path) -> Worktree:
    """Return a session's worktree with a submodule ``sub``, filled from the repository's own copy."""
    add_submodule(repository, library)
    return start_session(repository, tmp_path)


@pytest.fixture
def served(db: None, tmp_path: Path) -> Iterator[Served]:
    """Yield a session whose workspace, a repository, is served by a real agentctl."""
    with _served(tmp_path) as found:
        yield found


@pytest.fixture
def live(transactional_db: None, tmp_path: Path) -> Iterator[Served]:
    """Yield the same, with rows that are visible to other threads."""
    with _served(tmp_path) as found:
        yield found


@contextmanager
def _served(tmp_path: Path) -> Iterator[Served]:
    place = Place(tmp_path)
    make_repository_in(place.workspace)
    with place.agentctl(REAL):
        world = make_world()
        point_at(world, place)
        yield Served(world, place.workspace, place)


@pytest.fixture
def api(served: Served) -> APIClient:
    """Return a client of the team's member, who may operate."""
    served.trust()
    return client_of(served.world.member)
