"""Fixtures: one served deployment for each file of real runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.drills.deployment import Deployment
from tests.workflows.deployed_runs import DeployedWorkflows


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedWorkflows]:
    """Yield a served deployment with a team and a repository."""
    made = Deployment(tmp_path_factory.mktemp("runs"))
    made.prepare()
    try:
        made.serve()
        yield DeployedWorkflows(made)
    finally:
        made.close()
