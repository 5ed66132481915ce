"""Fixtures of the deployment tests."""

from tests.drills.conftest import deployment  # noqa: F401 - a fixture
