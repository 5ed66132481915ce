"""A session whose workspace is served by a real agentctl, and users who may use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from django.contrib.auth.models import Permission

from executors_app.wire import socket_urls
from sessions_app.models import TaskSession
from tests.agentctl import processes
from tests.agentctl.processes import OBEDIENT, REAL
from tests.agentctl.running import TOKEN
from tests.api.world import World
from tests.executors.repositories import commit, run_git


class Place(processes.Place):
    """A place whose agentctl listens on a Unix socket, as on the control plane's machine."""

    def argv(self, module: str = OBEDIENT) -> list[str]:
        """Return the command line of agentctl."""
        directory = self.base / "socket"
        directory.mkdir(mode=0o700, exist_ok=True)
        return [*super().argv(module), "--listen", socket_urls.unix_url(directory / "agentctl")]


@dataclass(frozen=True)
class Served:
    """API objects, and the directory that the session's agentctl serves."""

    world: World
    workspace: Path
    place: Place

    @property
    def session(self) -> TaskSession:
        return self.world.session

    def url(self, tail: str) -> str:
        return self.world.url(tail)

    def trust(self) -> None:
        """Give the team the right to operate sessions whose agents are not isolated."""
        self.world.team.permissions.add(Permission.objects.get(codename="operate_unisolated"))


def make_repository_in(workspace: Path) -> None:
    """Create a repository with one commit in the workspace."""
    workspace.mkdir(exist_ok=True)
    run_git(workspace, "init", "--quiet")
    commit(workspace, "README", "hello\n")


def point_at(world: World, place: Place) -> None:
    """Point the session's row at the agentctl."""
    world.mark_running(place.ready()["url"])
    execution = world.execution()
    execution.auth_token = TOKEN
    execution.state = place.state()
    execution.save()


__all__ = ["REAL", "Place", "Served", "make_repository_in", "point_at"]
