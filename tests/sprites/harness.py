"""The runtime on Sprites under test, with ways to disturb its sprites."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from executors_app.machine.process import identity
from executors_app.runtimes.sprites.organisation import sprite_name
from executors_app.runtimes.sprites.runtime import RUNTIME
from executors_app.wire.executions import LaunchSpec
from tests.executors.launches import only_agentctl
from tests.executors.repositories import run_git
from tests.services import ROOT
from tests.sprites.fake_api import FakeSpritesApi
from tests.sprites.machine import Machine


class SpritesHarness:
    """Harness for sprites of the fake API."""

    runtime = RUNTIME

    def __init__(self, repository: Path, sprites_api: FakeSpritesApi, root: Path):
        self.repository, self.sprites_api, self.root = repository, sprites_api, root
        script = str(ROOT / "executors_app" / "demo_agent")
        self.demo_agent = ["env", f"KANDEV_DEMO_AGENT_HOME={root / 'agent'}", sys.executable, "-I", script]
        self.config: dict[str, Any] = {"python": sys.executable}

    def machine(self, spec: LaunchSpec) -> Machine:
        """Return the sprite of a launch."""
        return self.sprites_api.machines[sprite_name(spec.execution_id)]

    def kill(self, spec: LaunchSpec) -> None:
        """Let the service fail for good, so that no process of the launch runs."""
        self.sprites_api.do(self.machine(spec).break_service())

    @contextmanager
    def silence(self, spec: LaunchSpec) -> Iterator[None]:
        """Freeze agentctl with SIGSTOP during the block."""
        agentctl = only_agentctl(spec.execution_id)
        identity.send_signal(agentctl, signal.SIGSTOP)
        try:
            yield
        finally:
            identity.send_signal(agentctl, signal.SIGCONT)

    def seen(self, path: str) -> Path:
        """Return the path itself: a sprite's disk is a directory of this machine."""
        return Path(path)

    def git(self, path: str, *arguments: str) -> str:
        """Run git in a worktree of a sprite; return its output."""
        return run_git(Path(path), *arguments)

    def forget(self, branch: str, session_id: str) -> None:
        """Prune worktrees, and delete a branch, in every sprite's repository."""
        for repository in self.root.rglob("repository.git"):
            run_git(repository, "worktree", "prune")
            if branch:
                with suppress(AssertionError):
                    run_git(repository, "branch", "-D", branch)
