"""A team with a session, as the tests of the API have it."""

from tests.api.fixtures import world

__all__ = ["world"]
