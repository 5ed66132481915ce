"""Restart drills A to D with sessions on the local machine."""

from __future__ import annotations

from tests.drills.restart_drills import RestartDrills


class TestRestartsOnThisMachine(RestartDrills):
    """Drills of restarts on the runtime ``local_standalone``."""
