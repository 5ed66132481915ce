"""The restart drills, with sessions on another machine."""

from __future__ import annotations

import pytest

from tests.drills.restart_drills import RestartDrills, SecondSweepDrill, StoppedSessionDrill

pytestmark = pytest.mark.any_database


class TestRestartsOnAnotherMachine(RestartDrills, SecondSweepDrill, StoppedSessionDrill):
    """Drills on ``remote``."""
