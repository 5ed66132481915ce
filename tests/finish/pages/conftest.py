"""A browser, for walks through the pages of merges and pushes."""

from tests.pages.fixtures import browser

__all__ = ["browser"]
