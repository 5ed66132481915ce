"""A complete Kandev whose sessions run in sprites of the fake API."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from executors_app.runtimes.sprites.organisation import sprite_name
from tests.drills.deployment import Deployment, Session
from tests.sprites.fake_api import TOKEN, FakeSpritesApi
from tests.sprites.machine import Machine


class SpritesDeployment(Deployment):
    """A Kandev in which every session has a sprite that outlives the control plane."""

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
        """Prepare the deployment with an executor for sprites as the default."""
        super().prepare()
        self.seeded["executor"] = self.add_executor("sprites", "sprites", {"python": sys.executable})

    def start_session(self, prompt: str, profile: Mapping[str, Any] | None = None, **values: Any) -> SpriteSession:
        """Start a session in a new sprite."""
        made = super().start_session(prompt, profile, **values)
        return SpriteSession(self, made.task_id, made.id, made.agent_home)


class SpriteSession(Session):
    """A session whose agentctl and files are in a sprite."""

    deployment: SpritesDeployment

    @property
    def machine(self) -> Machine:
        """Return the session's sprite."""
        return self.deployment.sprites_api.machines[sprite_name(self.execution_id)]

    def journal(self) -> str:
        """Return the journal from the sprite's disk."""
        directory = self.deployment.disks / self.execution_id / "state" / "journal"
        return "".join(path.read_text(errors="replace") for path in sorted(directory.glob("*.jsonl")))

    def kill_everything(self) -> None:
        """Make the sprite cold: all its processes end, and would start again with its service."""
        assert self.processes(), "no process of the session runs"
        self.deployment.sprites_api.do(self.machine.make_cold())
        assert not self.processes()
