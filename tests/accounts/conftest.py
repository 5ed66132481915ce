"""Fixtures: Ada, who may write in her team, and Bob, who belongs to another."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client

from tests.pages.world import World, make_world


@pytest.fixture(autouse=True)
def _fast_hashes_and_empty_cache(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    cache.clear()


@pytest.fixture
def world(db: None) -> World:
    """Return the API objects of both teams."""
    return make_world()


def browser_of(user: User) -> Client:
    """Return the browser session of ``user``."""
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def ada(world: World) -> Client:
    """Return the browser session of Ada."""
    return browser_of(world.ada)


@pytest.fixture
def bob(world: World) -> Client:
    """Return the browser session of Bob."""
    return browser_of(world.bob)


@pytest.fixture
def staff(world: World) -> Client:
    """Return the browser session of a staff user who is in no team."""
    return browser_of(User.objects.create(username="operator", is_staff=True))
