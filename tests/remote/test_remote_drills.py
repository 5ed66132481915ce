"""The restart drills, with sessions on another machine: the very same as on this one."""

from __future__ import annotations

import pytest

from tests.drills.test_restart_drills import (
    test_drill_a_agent_in_mid_turn_survives_a_control_plane_crash,
    test_drill_b_killed_agent_is_resumed_with_its_conversation,
    test_drill_c_workspace_of_an_agent_without_resume_stays_open,
    test_drill_d_missing_worktree_is_reported_and_others_recover,
)
from tests.drills.test_sweeps import (
    test_second_sweep_starts_writes_and_announces_nothing,
    test_stopped_session_stays_stopped_over_a_restart_until_prompted,
)

pytestmark = pytest.mark.any_database

__all__ = [
    "test_drill_a_agent_in_mid_turn_survives_a_control_plane_crash",
    "test_drill_b_killed_agent_is_resumed_with_its_conversation",
    "test_drill_c_workspace_of_an_agent_without_resume_stays_open",
    "test_drill_d_missing_worktree_is_reported_and_others_recover",
    "test_second_sweep_starts_writes_and_announces_nothing",
    "test_stopped_session_stays_stopped_over_a_restart_until_prompted",
]
