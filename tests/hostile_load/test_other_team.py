"""While one team's agent, viewers and admin use up what they can, another team's prompts are answered in time."""

from __future__ import annotations

import pytest

from tests.drills.conftest import deployment, pytest_runtest_makereport  # noqa: F401
from tests.drills.deployment import Deployment
from tests.hostile_load.drill import HostileLoad

SECONDS = 60


@pytest.mark.any_database
def test_prompts_of_another_team_are_answered_during_an_attack(deployment: Deployment) -> None:  # noqa: F811
    deployment.serve()
    measured = HostileLoad(deployment).run(SECONDS)
    assert measured.violations() == [], measured.table()
