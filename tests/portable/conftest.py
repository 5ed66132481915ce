"""Deployments for drills, as those of tests/drills have them."""

from tests.drills.conftest import deployment, pytest_runtest_makereport

__all__ = ["deployment", "pytest_runtest_makereport"]
