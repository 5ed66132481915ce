"""The restart drills, with sessions in containers of a real engine."""

from __future__ import annotations

import shutil

from tests.docker.deployment import ContainerSession
from tests.drills.deployment import Deployment, Session
from tests.drills.restart_drills import ConcurrentSweepsDrill, RestartDrills, SecondSweepDrill, StoppedSessionDrill


class TestRestartsInContainers(RestartDrills, SecondSweepDrill, ConcurrentSweepsDrill, StoppedSessionDrill):
    """Drills on ``local_docker``."""

    def lose_workspace(self, deployment: Deployment, session: Session) -> None:
        """Remove the whole workspace directory."""
        assert isinstance(session, ContainerSession)
        shutil.rmtree(session.workspace)
