"""The deployments of tests/drills."""

from tests.drills.conftest import deployment, pytest_runtest_makereport

__all__ = ["deployment", "pytest_runtest_makereport"]
