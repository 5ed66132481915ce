"""A whole Kandev whose sessions run in sprites of the fake API."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from executors_app.sprites.organisation import sprite_name
from tests.drills.deployment import Deployment, Session
from tests.sprites.fake_api import TOKEN, FakeSpritesApi
from tests.sprites.machine import Machine


class SpritesDeployment(Deployment):
    """Every session has a sprite, which lives on whatever becomes of the control plane."""

    def __init__(self, home: Path, sprites_api: FakeSpritesApi, disks: Path):
        super().__init__(home)
        self.sprites_api, self.disks = sprites_api, disks
        self.env |= {
            "DJANGO_SETTINGS_MODULE": "tests.sprites.settings",
            "FAKE_SPRITES_ROOT": str(disks),
            "FAKE_SPRITES_SOCKET": str(sprites_api.socket),
            "KANDEV_SPRITES_URL": sprites_api.url,
            "KANDEV_SPRITES_TOKEN": TOKEN,
        }

    def prepare(self) -> None:
        """With an executor for sprites."""
        super().prepare()
        self.seeded["executor"] = self.add_executor("sprites", "sprites", {"python": sys.executable})

    def start_session(self, prompt: str, profile: Mapping[str, Any] | None = None, **values: Any) -> SpriteSession:
        """In a sprite of its own."""
        made = super().start_session(prompt, profile, **values)
        return SpriteSession(self, made.task_id, made.id, made.agent_home)


class SpriteSession(Session):
    """One whose agentctl and files are in a sprite."""

    deployment: SpritesDeployment

    @property
    def machine(self) -> Machine:
        """Its sprite."""
        return self.deployment.sprites_api.machines[sprite_name(self.execution_id)]

    def journal(self) -> str:
        """On the sprite's disk."""
        directory = self.deployment.disks / self.execution_id / "state" / "journal"
        return "".join(path.read_text(errors="replace") for path in sorted(directory.glob("*.jsonl")))

    def kill_everything(self) -> None:
        """The sprite goes cold: whatever ran in it is gone, and would come up again with its service."""
        assert self.processes(), "nothing of the session runs"
        self.deployment.sprites_api.do(self.machine.chill())
        assert not self.processes()
