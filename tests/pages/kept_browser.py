"""One Chromium for all browser tests that follow each other in a process: its start takes five seconds of CPU time."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


class KeptBrowser:
    """A browser that is started when a test needs it, and closed before a test of a module that does not.

    Playwright leaves an event loop running in the thread, beside which tests of asynchronous code cannot run.
    """

    def __init__(self) -> None:
        self._open = ExitStack()
        self._browser: Browser | None = None

    def get(self) -> Browser:
        """Return the browser, a new one if there is none, or if it has crashed."""
        if self._browser is not None and not self._browser.is_connected():
            self.close()
        if self._browser is None:
            from tests.pages.browsers import real_browser  # noqa: PLC0415 - most test processes need no Playwright

            self._browser = self._open.enter_context(real_browser())
        return self._browser

    def close(self) -> None:
        """Close the browser if there is one."""
        self._browser = None
        self._open.close()

    def close_after(self, item: pytest.Item, following: pytest.Item | None) -> None:
        """Close the browser unless the following test needs it too, or is of the same module."""
        if following is None or not (following.path == item.path or _uses_browser(following)):
            self.close()


def _uses_browser(item: pytest.Item) -> bool:
    is_named = "browser" in getattr(item, "fixturenames", ())
    return is_named and item.get_closest_marker("browser") is not None


KEPT = KeptBrowser()
