"""A real browser and its users; console errors and other messages of the browser are collected."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.services import chromium, require

FLAGS: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run", "--disable-quic"),
)
PATIENCE: Final = 60_000
"""Timeout of clicks and expectations in milliseconds: long enough for a busy machine."""
COOKIE: Final = "kandev_session"
NO_SOCKET: Final = ("Unexpected response code: 404",)
"""What Chromium reports for a server without WebSockets, such as Django's test server."""
SERVER_AWAY: Final = (
    *("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "ERR_SOCKET_NOT_CONNECTED"),
    *("ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONTENT_LENGTH_MISMATCH", "ERR_CONNECTION_CLOSED"),
    *("Connection closed before receiving a handshake response", "Unexpected response code: 503"),
    "the server responded with a status of 503",
)
"""What Chromium reports for a server that was killed or has only just restarted."""


T = TypeVar("T")

expect.set_options(timeout=PATIENCE)


@contextmanager
def real_browser() -> Iterator[Browser]:
    """Start Chromium and yield it.

    Playwright's event loop in this thread must not make Django think that callers are async.
    """
    require("chromium")
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
            yield browser
            browser.close()
    finally:
        if before is None:
            del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@contextmanager
def navigating(page: Page) -> Iterator[None]:
    """Wait until the page that an action opens has loaded.

    Until then, the next action could reach the page before it, or the new one without its scripts and styles.
    """
    with page.expect_navigation():
        yield


def hold_updates(page: Page) -> None:
    """Leave the page's requests for changes without an answer; what was on its way has been shown when this returns."""
    page.route("**/live/**", lambda route: None)
    with page.expect_request("**/live/**"):  # a page makes one after the other
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def wait_until(page: Page, expression: str) -> None:
    """Evaluate ``expression`` until it is true; raise TimeoutError if it does not become so.

    Playwright's own `wait_for_function` evaluates again inside the page, where the pages' security policy forbids it:
    it works only if the first evaluation is true.
    """
    deadline = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(expression):
        if time.monotonic() > deadline:
            raise TimeoutError(expression)
        page.wait_for_timeout(20)  # in which Playwright receives events


def reported(page: Page, events: list[T]) -> list[T]:
    """Return what handlers of browser events have collected, once the browser had time to call them."""
    page.wait_for_timeout(50)
    return events


class Visit:
    """A user in one browser window, logged in by a cookie; ``complaints`` are the browser's errors."""

    def __init__(self, browser: Browser, url: str, cookie: str, **screen: Any):
        self.context: BrowserContext = browser.new_context(base_url=url, **screen)
        self.context.set_default_timeout(PATIENCE)
        self.context.add_cookies([{"name": COOKIE, "value": cookie, "url": url}])
        self.complaints: list[str] = []
        self.page = self.tab()

    def tab(self) -> Page:
        """Open another tab and collect its errors too."""
        page = self.context.new_page()
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        return page

    def _note(self, kind: str, text: str) -> None:
        if kind == "error":
            self.complaints.append(text)

    def open(self, path: str) -> Page:
        """Open ``path`` and return the page."""
        self.page.goto(path)
        return self.page

    def unexpected(self, *expected: str) -> list[str]:
        """Return the errors that contain no text of ``expected``."""
        return [one for one in self.complaints if not any(name in one for name in expected)]
