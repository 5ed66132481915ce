"""Fixtures: a world with teams, and a server for git over ssh."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User

from tests.api.fixtures import world as world  # noqa: PLC0414  (a fixture)
from tests.api.world import World
from tests.repositories.remote_servers import GitSshServer
from tests.services import require


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitSshServer]:
    require("git over ssh")
    server = GitSshServer(tmp_path_factory.mktemp("sshd") / "server")
    yield server
    server.close()


@pytest.fixture
def staff(world: World) -> User:
    return world.staff
