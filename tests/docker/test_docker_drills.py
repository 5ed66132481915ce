"""The restart drills, with sessions in containers of a real engine: the very same as on this machine."""

from __future__ import annotations

import shutil

from tests.docker.deployment import ContainerSession, DockerDeployment
from tests.drills.deployment import Session
from tests.drills.test_restart_drills import (
    lose_one_of_two,
    test_drill_a_agent_in_mid_turn_survives_a_control_plane_crash,
    test_drill_b_killed_agent_is_resumed_with_its_conversation,
    test_drill_c_workspace_of_an_agent_without_resume_stays_open,
)
from tests.drills.test_sweeps import (
    test_second_sweep_starts_writes_and_announces_nothing,
    test_stopped_session_stays_stopped_over_a_restart_until_prompted,
    test_three_concurrent_sweeps_resume_a_session_once,
)

__all__ = [
    "test_drill_a_agent_in_mid_turn_survives_a_control_plane_crash",
    "test_drill_b_killed_agent_is_resumed_with_its_conversation",
    "test_drill_c_workspace_of_an_agent_without_resume_stays_open",
    "test_second_sweep_starts_writes_and_announces_nothing",
    "test_stopped_session_stays_stopped_over_a_restart_until_prompted",
    "test_three_concurrent_sweeps_resume_a_session_once",
]


def test_missing_workspace_is_reported_and_others_recover(deployment: DockerDeployment) -> None:
    def lose(gone: Session) -> None:
        assert isinstance(gone, ContainerSession)
        shutil.rmtree(gone.workspace)

    lose_one_of_two(deployment, lose)
