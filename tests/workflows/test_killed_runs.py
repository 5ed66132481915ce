"""A run that is killed in its third iteration ends right, or stands on a prompt that *send again* completes."""

from __future__ import annotations

import pytest

from tests.workflows.deployed_runs import Desk
from tests.workflows.kill_drill import drill

SPREAD = (11,)
"""Seeds; ``make chaos`` has twenty."""


@pytest.mark.parametrize("seed", SPREAD)
def test_run_killed_in_third_iteration_ends_correctly(desk: Desk, seed: int) -> None:
    assert drill(desk, seed) == []
