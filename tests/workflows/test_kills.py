"""A run that is killed in its third iteration ends right, or stands on a prompt that *send again* completes."""

from __future__ import annotations

import pytest

from tests.workflows.kills import drill
from tests.workflows.runs import Desk

SPREAD = (11,)
"""Seeds; ``make chaos`` has twenty."""


@pytest.mark.parametrize("seed", SPREAD)
def test_a_run_that_is_killed_in_iteration_three_of_five_ends_right(desk: Desk, seed: int) -> None:
    assert drill(desk, seed) == []
