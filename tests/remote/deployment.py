"""A complete Kandev whose sessions run on another machine."""

from __future__ import annotations

from pathlib import Path

from executors_app.machine.process import identity
from tests.drills.deployment import Deployment
from tests.remote.machines import Machine


class RemoteDeployment(Deployment):
    """A Kandev whose sessions run on the machine, unless a test names another executor."""

    def __init__(self, home: Path):
        super().__init__(home)
        self.env["KANDEV_SWEEP_TIMEOUT"] = "3"
        self.machine = Machine(home / "machine", [str(self.repository)])
        self.on_this_machine = ""
        """The executor whose sessions run beside Kandev."""

    @property
    def agentctls(self) -> Path:
        """Return the directory of agentctl state on the machine."""
        return self.machine.root / "agentctl"

    def prepare(self) -> None:
        """Prepare the deployment and add an executor for the machine."""
        super().prepare()
        self.machine.start()
        self.on_this_machine = self.seeded["executor"]
        self.seeded["executor"] = self.add_machine()

    def add_machine(self) -> str:
        """Add an executor for the machine; return its id."""
        return self.add_executor("machine", "remote", self.machine.config_in(self.data))

    def close(self) -> None:
        """End the machine and the sessions that ran beside Kandev, too."""
        super().close()
        self.machine.close()
        for execution in super().agentctls.glob("*"):
            identity.kill_all(identity.find_marked(execution.name), 10)
