"""The world of the pages, and browsers of the people in it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.pages.world import World, make_world, supervise


@pytest.fixture(autouse=True)
def _hash_passwords_quickly(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def world(db: None) -> World:
    """Ada, Bob and their things; a supervisor has swept."""
    supervise()
    return make_world()


@pytest.fixture
def ada(world: World) -> Client:
    """Ada's browser."""
    client = Client()
    client.force_login(world.ada)
    return client


@pytest.fixture
def bob(world: World) -> Client:
    """Bob's browser; he is in another team."""
    client = Client()
    client.force_login(world.bob)
    return client
