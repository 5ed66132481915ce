"""A run killed in its third iteration ends correctly, or waits on a held prompt that *Send again* completes."""

from __future__ import annotations

import pytest

from tests.workflows.deployed_runs import Desk
from tests.workflows.kill_drill import drill

SPREAD = (11,)
"""Seeds; ``make chaos`` runs twenty."""


@pytest.mark.parametrize("seed", SPREAD)
def test_run_killed_in_third_iteration_ends_correctly(desk: Desk, seed: int) -> None:
    assert drill(desk, seed) == []
