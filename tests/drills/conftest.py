"""Deployments for drills; a failed drill prints the story of its deployment."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.drills.deployment import Deployment


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """A Kandev of its own, prepared and not yet served."""
    made = Deployment(tmp_path)
    made.prepare()
    yield made
    made.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the story of its deployment into the report of a drill that failed."""
    report = yield
    used = [value for value in getattr(item, "funcargs", {}).values() if isinstance(value, Deployment)]
    if report.failed and used and used[0].seeded:
        report.sections.append(("what happened", _story(used[0])))
    return report


def _story(deployment: Deployment) -> str:
    """A database that the drill has stopped tells nothing."""
    try:
        return deployment.story()
    except psycopg.OperationalError:
        return deployment.log()[-6000:]
