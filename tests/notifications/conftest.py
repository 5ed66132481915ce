"""A team with a session, and a client of the API."""

from tests.api.fixtures import api, world

__all__ = ["api", "world"]
