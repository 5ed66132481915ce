"""Fixtures for tests of pages, in every topic: users, sessions and browsers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import Browser

from tests.pages.browsers import COOKIE, Visit
from tests.pages.kept_browser import KEPT
from tests.pages.world import World, make_world, supervise


@pytest.fixture(scope="module")
def browser() -> Browser:
    """Return Chromium, which may have been started for an earlier module."""
    return KEPT.get()


@pytest.fixture(autouse=True)
def quick_password_hashes(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def world(db: None) -> World:
    """Return API objects of the users Ada and Bob; a supervisor has finished its sweep."""
    supervise()
    return make_world()


@pytest.fixture
def ada(world: World) -> Client:
    """Return the browser session of Ada."""
    client = Client()
    client.force_login(world.ada)
    return client


@pytest.fixture
def staff(world: World, ada: Client) -> Client:
    """Return the browser session of Ada, who is an administrator."""
    world.ada.is_staff = True
    world.ada.save()
    return ada


@pytest.fixture
def bob(world: World) -> Client:
    """Return the browser session of Bob, who is in another team."""
    client = Client()
    client.force_login(world.bob)
    return client


@pytest.fixture
def visit(browser: Browser, live_server: Any, world: World) -> Iterator[Callable[..., Visit]]:
    """Yield a function that opens a browser as Ada; its windows are closed after the test.

    A browser that crashed in an earlier test is replaced.
    """
    made: list[Visit] = []

    def begin(**screen: Any) -> Visit:
        client = Client()
        client.force_login(world.ada)
        made.append(Visit(KEPT.get(), live_server.url, client.cookies[COOKIE].value, **screen))
        return made[-1]

    yield begin
    for one in made:
        one.context.close()
