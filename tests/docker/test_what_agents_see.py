"""What each kind of process that runs as the agent sees of itself, of agentctl and of its neighbours."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

from executors_app.machine.process.spawning import AGENT_MARKER, AGENTCTL_UID, SHELL_MARKER
from executors_app.wire.errors import AgentctlRefused
from executors_app.wire.executions import Launched, LaunchSpec
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.docker import look_around
from tests.docker.harness import DockerHarness
from tests.executors.harness import client_of, ended_job, git_in, known, seen, start_agent
from tests.waiting import eventually

SCRIPT: Final = "/workspace/look_around.py"
REPORTS: Final = "/workspace/reports"
OWN_VARIABLES: Final = {EXECUTION_MARKER, AGENT_MARKER, SHELL_MARKER, "KANDEV_JOB"}


class Lookout:
    """A session in a container with the script, which its agent's processes run."""

    def __init__(self, harness: DockerHarness, spec: LaunchSpec, launched: Launched):
        self.harness, self.spec, self.launched = harness, spec, launched
        self.directory = seen(harness, launched).parents[1]
        script = self.directory / Path(SCRIPT).name
        script.write_bytes(Path(look_around.__file__).read_bytes())
        script.chmod(0o644)
        self.command = f"python3 {SCRIPT} {REPORTS}"

    def reports(self, count: int) -> list[dict[str, Any]]:
        """Wait for that many reports, return them, and forget them."""
        file = self.directory / Path(REPORTS).name
        eventually(lambda: _count_lines(file) >= count, describe="the processes have reported what they see")
        lines = file.read_text().splitlines()
        file.unlink()
        return [json.loads(line) for line in lines]

    async def run_agent(self) -> list[dict[str, Any]]:
        with pytest.raises(AgentctlRefused, match="the agent ended"):
            await start_agent(self.harness, self.spec, self.launched, "first", argv=["sh", "-c", self.command])
        return self.reports(1)

    async def run_job(self) -> list[dict[str, Any]]:
        client = client_of(self.spec, self.launched)
        await client.start_job("job-1", {"script": self.command})
        await ended_job(client, "job-1")
        return self.reports(1)

    async def run_shell(self) -> list[dict[str, Any]]:
        async with client_of(self.spec, self.launched).shell("main", 80, 24) as shell:
            await shell.type(f"{self.command}; exit\n".encode())
            return self.reports(1)

    async def run_clean_filter(self) -> list[dict[str, Any]]:
        self._configure_filter()
        (seen(self.harness, self.launched) / "README").write_text("changed\n")
        await client_of(self.spec, self.launched).snapshot()
        return self.reports(1)

    async def run_smudge_filter_of_a_new_workspace(self) -> list[dict[str, Any]]:
        """Let agentctl create the work tree at its start, before it serves."""
        self._configure_filter()
        self._delete_work_tree()
        self.harness.kill(self.spec)
        self.launched = await self.harness.runtime.launch(known(self.spec, self.launched))
        return self.reports(1)

    async def run_smudge_filter_of_a_rebuilt_workspace(self) -> list[dict[str, Any]]:
        """Let agentctl create the work tree again while it serves."""
        self._configure_filter()
        self._delete_work_tree()
        assert await client_of(self.spec, self.launched).make_workspace()
        return self.reports(1)

    def _configure_filter(self) -> None:
        git_in(self.harness, self.launched, "config", "filter.look.clean", f"{self.command}; cat")
        git_in(self.harness, self.launched, "config", "filter.look.smudge", f"{self.command}; cat")
        attributes = self.directory / "repository.git" / "info" / "attributes"
        attributes.write_text("README filter=look\n")
        attributes.chmod(0o644)

    def _delete_work_tree(self) -> None:
        code, output = self.harness.run(self.spec, "rm", "-r", self.launched.worktree_path)
        assert code == 0, output


KINDS: Final = (
    Lookout.run_agent,
    Lookout.run_job,
    Lookout.run_shell,
    Lookout.run_clean_filter,
    Lookout.run_smudge_filter_of_a_new_workspace,
    Lookout.run_smudge_filter_of_a_rebuilt_workspace,
)


async def test_process_of_the_agent_reaches_nothing_of_agentctl(harness: DockerHarness, spec: LaunchSpec) -> None:
    lookout = Lookout(harness, spec, await harness.runtime.launch(spec))
    for kind in KINDS:
        for report in await kind(lookout):
            check_own(report, harness.user)
            check_others(report["others"])


def check_own(report: dict[str, Any], user: str) -> None:
    """Check what a process has."""
    uid, gid = (int(number) for number in user.split(":"))
    assert report["user"] == [uid] * 3 + [gid] * 3, "no root, no group of agentctl"
    assert report["priority"] == os.getpriority(os.PRIO_PROCESS, 0), "that of the engine"
    assert report["umask"] & 0o022 == 0o022
    unexpected = {number: to for number, to in report["descriptors"].items() if not is_own(number, to)}
    assert not unexpected
    assert {name for name in report["environment"] if name.startswith("KANDEV")} <= OWN_VARIABLES


def check_others(others: list[dict[str, Any]]) -> None:
    """Check what a process can do to others."""
    assert any(other["pid"] == 1 for other in others)
    for other in others:
        assert not other["token"], other
        if other["user"][0] == str(AGENTCTL_UID):
            # Its effective user is the agent's, which alone would permit to change affinity and priority. The kernel
            # also requires that agentctl has no capability that the caller lacks.
            assert not other["succeeded"], other
            assert not look_around.TOKEN.search(" ".join(other["command"]).encode())


def _count_lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


def is_own(number: str, leads_to: str) -> bool:
    """Whether a descriptor is an end of a pipe or terminal of the process, or a file that the agent owns anyway.

    git leaves an end of one of its own pipes open in filters; agentctl's pipes are never inherited.
    """
    if leads_to.startswith("/workspace/"):
        return True
    return leads_to.startswith("pipe:") or (int(number) < 3 and leads_to.startswith(("/dev/pts/", "/dev/null")))
