"""A deployment for real runs, one for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.drills.deployment import Deployment
from tests.workflows.deployed_runs import Desk


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A served deployment with a team and a repository."""
    made = Deployment(tmp_path_factory.mktemp("runs"))
    made.prepare()
    try:
        made.serve()
        yield Desk(made)
    finally:
        made.close()
