"""Fixtures: a team's repository, its object store, and the archive of one workspace."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors_app.repositories.team import TeamRepository
from tests.executors.repositories import make_repository
from tests.repositories.usage import usage as usage  # noqa: PLC0414  (a fixture)
from tests.repositories.workspaces import Place, create_sandbox


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "team")


@pytest.fixture
def team(repository: Path) -> TeamRepository:
    return TeamRepository.open(repository)


@pytest.fixture
def place(tmp_path: Path, repository: Path) -> Place:
    return Place(tmp_path / "data", repository)


@pytest.fixture
def sandbox(place: Place, tmp_path: Path) -> Path:
    place.begin()
    return create_sandbox(place, tmp_path / "sandbox")
