"""The runtime on another machine under test, with ways to disturb what it starts there."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path

from executors_app.machine.process import identity
from executors_app.runtimes.remote.runtime import Remote
from executors_app.wire.executions import LaunchSpec
from tests.executors.local_harness import silenced
from tests.remote.machines import Machine
from tests.services import ROOT


class RemoteHarness:
    """Harness for a machine that is really this one, so that its files and processes can be reached."""

    def __init__(self, machine: Machine, repository: Path, home: Path):
        self.machine, self.repository = machine, repository
        self.runtime = Remote()
        self.config = machine.config_in(home / "data")
        script = str(ROOT / "executors_app" / "demo_agent")
        self.demo_agent = ["env", f"KANDEV_DEMO_AGENT_HOME={home / 'agent'}", sys.executable, "-I", script]

    def kill(self, spec: LaunchSpec) -> None:
        """Kill all processes of an execution at once."""
        identity.kill_all(self.machine.processes(spec.execution_id), 10)
        assert self.machine.processes(spec.execution_id) == []

    def silence(self, spec: LaunchSpec) -> AbstractContextManager[None]:
        """Freeze the agentctl of an execution with SIGSTOP during the block."""
        return silenced(spec.execution_id)
