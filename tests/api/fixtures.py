"""Fixtures for tests of the REST API, in every topic: a team with a session, and clients."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from tests.api.world import World, client_of, make_world


@pytest.fixture
def world(db: None) -> World:
    return make_world()


@pytest.fixture
def api(world: World) -> APIClient:
    """Return a client of the team's member."""
    return client_of(world.member)


@pytest.fixture
def staff(world: World) -> APIClient:
    return client_of(world.staff)
