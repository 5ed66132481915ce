"""The runtime on this machine under test, with ways to disturb its processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from executors_app.machine.process import execution_processes, identity
from executors_app.runtimes.local_standalone.runtime import RUNTIME
from executors_app.wire.executions import LaunchSpec
from tests.executors.launches import only_agentctl
from tests.services import ROOT


@contextmanager
def silenced(execution_id: str) -> Iterator[None]:
    """Freeze the agentctl of an execution with SIGSTOP during the block."""
    agentctl = only_agentctl(execution_id)
    identity.send_signal(agentctl, 19)
    try:
        yield
    finally:
        identity.send_signal(agentctl, 18)


class LocalHarness:
    """Harness for the runtime on this machine."""

    runtime = RUNTIME

    def __init__(self, repository: Path, agent_home: Path):
        self.repository = repository
        script = str(ROOT / "executors_app" / "demo_agent")
        self.demo_agent = ["env", f"KANDEV_DEMO_AGENT_HOME={agent_home}", sys.executable, "-I", script]
        self._launched: set[str] = set()

    def kill(self, spec: LaunchSpec) -> None:
        """Kill all processes of an execution at once."""
        identity.kill_all(self._processes(spec.execution_id), 10)
        assert execution_processes.find_processes(spec.execution_id) == execution_processes.ExecutionProcesses()

    def silence(self, spec: LaunchSpec) -> AbstractContextManager[None]:
        """Freeze the agentctl of an execution with SIGSTOP during the block."""
        return silenced(spec.execution_id)

    def close(self, data_directory: Path) -> None:
        """End everything that the test has started."""
        for state in (data_directory / "agentctl").glob("*"):
            identity.kill_all(self._processes(state.name), 10)

    def _processes(self, execution_id: str) -> list[identity.ProcessIdentity]:
        found = execution_processes.find_processes(execution_id)
        return [*found.agentctl, *found.others]
