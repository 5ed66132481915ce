"""The runtime on this machine under test, and the rude things that can be done to its processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from executors_app.agentctl.process import execution_processes, identity
from executors_app.domain import LaunchSpec
from executors_app.runtimes.local_standalone import RUNTIME
from tests.services import ROOT


@contextmanager
def silenced(execution_id: str) -> Iterator[None]:
    """An agentctl on this machine that is there and does not answer."""
    (agentctl,) = execution_processes.find_processes(execution_id).agentctl
    identity.send_signal(agentctl, 19)
    try:
        yield
    finally:
        identity.send_signal(agentctl, 18)


class LocalHarness:
    """This machine."""

    runtime = RUNTIME

    def __init__(self, repository: Path, agent_home: Path):
        self.repository = repository
        script = str(ROOT / "executors_app" / "demo_agent.py")
        self.demo_agent = ["env", f"KANDEV_DEMO_AGENT_HOME={agent_home}", sys.executable, "-I", script]
        self._launched: set[str] = set()

    def kill(self, spec: LaunchSpec) -> None:
        """Everything of it at once."""
        identity.kill_all(self._processes(spec.execution_id), 10)
        assert execution_processes.find_processes(spec.execution_id) == execution_processes.ExecutionProcesses()

    def silence(self, spec: LaunchSpec) -> AbstractContextManager[None]:
        """SIGSTOP, and SIGCONT afterwards."""
        return silenced(spec.execution_id)

    def close(self, data_directory: Path) -> None:
        """End what the test has started."""
        for state in (data_directory / "agentctl").glob("*"):
            identity.kill_all(self._processes(state.name), 10)

    def _processes(self, execution_id: str) -> list[identity.ProcessIdentity]:
        found = execution_processes.find_processes(execution_id)
        return [*found.agentctl, *found.others]
