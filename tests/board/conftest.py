"""A team with a session, and clients of the API."""

from tests.api.fixtures import api, world

__all__ = ["api", "world"]
