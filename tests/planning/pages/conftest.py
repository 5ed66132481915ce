"""Users, sessions and browsers of page tests."""

from tests.pages.fixtures import ada, bob, browser, quick_password_hashes, staff, visit, world

__all__ = ["ada", "bob", "browser", "quick_password_hashes", "staff", "visit", "world"]
