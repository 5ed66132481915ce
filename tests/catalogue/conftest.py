"""The two teams of the pages, and a repository on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache

from sessions_app.accounts.models import TeamRole
from sessions_app.models import Repository
from tests.executors.repositories import make_repository
from tests.pages.world import World, make_world


@pytest.fixture(autouse=True)
def _no_earlier_checks() -> None:
    cache.clear()


@pytest.fixture
def world(db: None) -> World:
    return make_world()


@pytest.fixture
def on_disk(world: World, tmp_path: Path, settings: Any) -> Repository:
    """Return a repository of Ada's team that exists, with its branch ``main``."""
    settings.KANDEV_REPOSITORY_ROOTS = (str(tmp_path),)
    path = make_repository(tmp_path / "project")
    row: Repository = Repository.objects.create(name="project", team=world.team, path=str(path), default_branch="main")
    return row


@pytest.fixture
def manager(world: World) -> User:
    """Return an admin of Ada's team."""
    user = User.objects.create(username="grace")
    user.groups.add(world.team)
    TeamRole.objects.create(user=user, team=world.team, role=TeamRole.Role.ADMIN)
    return user
