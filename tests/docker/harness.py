"""The runtime on Docker under test, with ways to disturb its containers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from docker.errors import APIError

from executors_app.machine.git.recovery_snapshots import session_recovery_ref
from executors_app.runtimes.containers.runtime import DockerRuntime
from executors_app.runtimes.containers.sites import container_name
from executors_app.runtimes.local_docker.runtime import RUNTIME, agent_user, workspace_directory
from executors_app.wire.executions import LaunchSpec
from tests.docker.engine import Engine
from tests.executors.repositories import run_git
from tests.waiting import eventually

ADD_SUBMODULE = """
# As git submodule add, which is a script and needs more programs than this image has.
set -e
git init --quiet /tmp/library
cd /tmp/library
git config user.name Library
git config user.email library@example.org
echo lib >f.txt
git add f.txt
git commit --quiet -m Library
cd "$1"
modules="$(git rev-parse --absolute-git-dir)/modules"
git init --quiet --bare "$modules/another"
git clone --quiet --separate-git-dir "$modules/sub" /tmp/library sub
git config --file .gitmodules submodule.sub.path sub
git config --file .gitmodules submodule.sub.url /tmp/library
git add .gitmodules sub
git -c user.name=Agent -c user.email=agent@example.org commit --quiet -m "With a submodule"
cd sub
git switch --quiet -c work
echo committed >g.txt
git add g.txt
git -c user.name=Agent -c user.email=agent@example.org commit --quiet -m "Only here"
echo precious >f.txt
echo new >new
"""
"""Adds the submodule ``sub`` to the workspace ``$1``, with a commit and two changes of its own."""


class DockerHarness:
    """Harness for containers of the tests' own engine."""

    runtime: DockerRuntime = RUNTIME

    def __init__(self, repository: Path, engine: Engine):
        self.repository, self.engine = repository, engine
        self.demo_agent = ["kandev-demo-agent"]
        self.user = agent_user()
        """Whom agents are there."""

    def kill(self, spec: LaunchSpec) -> None:
        """Kill the first process of the container with SIGKILL: all others end with it."""
        with self.client() as client:
            client.kill(container_name(spec.execution_id))
        eventually(lambda: self.inspect(spec)["State"]["Status"] == "exited", describe="the container has ended")

    @contextmanager
    def silence(self, spec: LaunchSpec) -> Iterator[None]:
        """Freeze the container's first process with SIGSTOP during the block."""
        pid = self.inspect(spec)["State"]["Pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def inspect(self, spec: LaunchSpec) -> dict[str, Any]:
        """Return the engine's description of a launch's container."""
        with self.client() as client:
            found: dict[str, Any] = client.inspect_container(container_name(spec.execution_id))
        return found

    def run(self, spec: LaunchSpec, *argv: str) -> tuple[int, str]:
        """Run a command in the container as its agent would; return exit code and output."""
        with self.client() as client:
            made = client.exec_create(container_name(spec.execution_id), list(argv), user=self.user)
            output = client.exec_start(made["Id"]).decode(errors="replace")
            return int(client.exec_inspect(made["Id"])["ExitCode"]), output

    def directory_of(self, owner_id: str) -> Path:
        """Return the directory of a workspace on the engine's machine."""
        return workspace_directory(owner_id)

    def seen(self, path: str) -> Path:
        """Return a path of a workspace as the engine's machine sees it."""
        return self.directory_of(Path(path).name) / "worktrees" / Path(path).name

    def git(self, path: str, *arguments: str) -> str:
        """Run git in a running container that has the workspace mounted; return its output."""
        source = str(self.directory_of(Path(path).name))
        with self.client() as client:
            running = client.containers(filters={"label": "kandev.managed=true"})
            found = next(one for one in running if source in {mount["Source"] for mount in one["Mounts"]})
            made = client.exec_create(found["Id"], ["git", "-C", path, *arguments], user=self.user)
            output: bytes = client.exec_start(made["Id"])
            assert client.exec_inspect(made["Id"])["ExitCode"] == 0, output
        return output.decode().strip()

    def forget(self, branch: str, session_id: str) -> None:
        """Prune worktrees, and delete a branch with its snapshots, in the workspace's own repository."""
        repository = self.directory_of(session_id) / "repository.git"
        ours = ("-c", "safe.directory=*")
        run_git(repository, *ours, "worktree", "prune")
        if branch:
            run_git(repository, *ours, "branch", "-D", branch)
            run_git(repository, *ours, "update-ref", "-d", session_recovery_ref(session_id))

    @contextmanager
    def client(self) -> Iterator[Any]:
        """Yield a client of the engine; close it afterwards."""
        client = self.engine.client()
        try:
            yield client
        finally:
            client.close()

    def close(self) -> None:
        """Remove every managed container and network."""
        with self.client() as client:
            for container in client.containers(all=True, filters={"label": "kandev.managed=true"}):
                client.remove_container(container["Id"], force=True)
            for network in client.networks(filters={"label": "kandev.managed=true"}):
                try:
                    client.remove_network(network["Id"])
                except APIError as error:
                    if error.status_code != 404:
                        raise
