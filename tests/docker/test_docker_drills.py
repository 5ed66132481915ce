"""The restart drills, with sessions in containers of a real engine: the very same as on this machine."""

from __future__ import annotations

import shutil

from tests.docker.deployment import ContainerSession, DockerDeployment
from tests.drills.deployment import Session
from tests.drills.test_restart_drills import (
    lose_one_of_two,
    test_drill_a_an_agent_in_mid_turn_lives_through_the_death_of_the_control_plane,
    test_drill_b_an_agent_that_died_too_is_resumed_and_still_knows,
    test_drill_c_an_agent_that_cannot_resume_leaves_its_workspace_open,
)
from tests.drills.test_sweeps import (
    test_a_second_sweep_starts_writes_and_announces_nothing,
    test_a_stopped_session_stays_stopped_over_a_restart_and_is_resumed_by_a_prompt,
    test_three_sweeps_at_once_resume_a_session_once,
)

__all__ = [
    "test_a_second_sweep_starts_writes_and_announces_nothing",
    "test_a_stopped_session_stays_stopped_over_a_restart_and_is_resumed_by_a_prompt",
    "test_drill_a_an_agent_in_mid_turn_lives_through_the_death_of_the_control_plane",
    "test_drill_b_an_agent_that_died_too_is_resumed_and_still_knows",
    "test_drill_c_an_agent_that_cannot_resume_leaves_its_workspace_open",
    "test_three_sweeps_at_once_resume_a_session_once",
]


def test_missing_workspace_is_reported_and_others_recover(deployment: DockerDeployment) -> None:
    def lose(gone: Session) -> None:
        assert isinstance(gone, ContainerSession)
        shutil.rmtree(gone.workspace)

    lose_one_of_two(deployment, lose)
