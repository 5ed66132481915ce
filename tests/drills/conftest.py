"""Deployments for drills; a failed drill prints the records of its deployment."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.drills.deployment import Deployment


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """Yield a deployment that is prepared and not yet running."""
    made = Deployment(tmp_path)
    made.prepare()
    yield made
    made.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add logs and records of its deployment to the report of a failed drill."""
    report = yield
    used = [value for value in getattr(item, "funcargs", {}).values() if isinstance(value, Deployment)]
    if report.failed and used and used[0].seeded:
        report.sections.append(("what happened", _story(used[0])))
    return report


def _story(deployment: Deployment) -> str:
    """Return the logs and records of a deployment; if its database is down, the end of the server's log."""
    try:
        return deployment.story()
    except psycopg.OperationalError:
        return deployment.log()[-6000:]
