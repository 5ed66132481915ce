"""The restart drills A to D, with sessions on this machine."""

from __future__ import annotations

from tests.drills.restart_drills import RestartDrills


class TestRestartsOnThisMachine(RestartDrills):
    """``local_standalone``."""
