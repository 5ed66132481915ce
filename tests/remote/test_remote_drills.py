"""The restart drills, with sessions on another machine: the very same as on this one."""

from __future__ import annotations

import pytest

from tests.drills.test_restart_drills import (
    test_drill_a_an_agent_in_mid_turn_lives_through_the_death_of_the_control_plane,
    test_drill_b_an_agent_that_died_too_is_resumed_and_still_knows,
    test_drill_c_an_agent_that_cannot_resume_leaves_its_workspace_open,
    test_drill_d_missing_worktree_is_reported_and_others_recover,
)
from tests.drills.test_sweeps import (
    test_a_second_sweep_starts_writes_and_announces_nothing,
    test_a_stopped_session_stays_stopped_over_a_restart_and_is_resumed_by_a_prompt,
)

pytestmark = pytest.mark.any_database

__all__ = [
    "test_a_second_sweep_starts_writes_and_announces_nothing",
    "test_a_stopped_session_stays_stopped_over_a_restart_and_is_resumed_by_a_prompt",
    "test_drill_a_an_agent_in_mid_turn_lives_through_the_death_of_the_control_plane",
    "test_drill_b_an_agent_that_died_too_is_resumed_and_still_knows",
    "test_drill_c_an_agent_that_cannot_resume_leaves_its_workspace_open",
    "test_drill_d_missing_worktree_is_reported_and_others_recover",
]
