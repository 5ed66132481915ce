"""Ada, who may write in her team, and Bob, who belongs to another."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client

from tests.pages.world import World, make_world


@pytest.fixture(autouse=True)
def _quick_and_forgetful(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    cache.clear()


@pytest.fixture
def world(db: None) -> World:
    """Both teams."""
    return make_world()


def browser_of(user: User) -> Client:
    """Return a browser in which ``user`` is logged in."""
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def ada(world: World) -> Client:
    """Ada's browser."""
    return browser_of(world.ada)


@pytest.fixture
def bob(world: World) -> Client:
    """Bob's browser."""
    return browser_of(world.bob)


@pytest.fixture
def staff(world: World) -> Client:
    """The browser of a staff user who is in no team."""
    return browser_of(User.objects.create(username="operator", is_staff=True))
