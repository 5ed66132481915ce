"""A browser, for walks through the pages of merges and pushes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser

from tests.pages.browsers import COOKIE, Visit
from tests.pages.fixtures import browser

__all__ = ["browser"]


@pytest.fixture
def visit_as(browser: Browser, live_server: Any) -> Iterator[Callable[..., Visit]]:
    """Yield a function that opens a browser as a user; its windows are closed after the test."""
    made: list[Visit] = []

    def begin(user: User, **screen: Any) -> Visit:
        client = Client()
        client.force_login(user)
        made.append(Visit(browser, live_server.url, client.cookies[COOKIE].value, **screen))
        return made[-1]

    yield begin
    for one in made:
        one.context.close()
