"""A whole Kandev whose sessions run on another machine."""

from __future__ import annotations

import json
from pathlib import Path

from tests.drills.deployment import Deployment
from tests.remote.machines import Machine

SEED = """
import json
from executors_app.models import Executor
executor = Executor(name="machine", runtime="remote", config=json.loads(TOLD))
executor.full_clean()
executor.save()
print(json.dumps(str(executor.id)))
"""


class RemoteDeployment(Deployment):
    """Sessions go to the machine, unless another executor is named."""

    def __init__(self, home: Path):
        super().__init__(home)
        self.env["KANDEV_SWEEP_TIMEOUT"] = "3"
        self.machine = Machine(home / "machine", [str(self.repository)])
        self.on_this_machine = ""
        """The executor whose sessions run beside Kandev."""

    @property
    def agentctls(self) -> Path:
        """On the machine."""
        return self.machine.root / "agentctl"

    def prepare(self) -> None:
        """With an executor for the machine too."""
        super().prepare()
        self.machine.start()
        self.on_this_machine = self.seeded["executor"]
        self.seeded["executor"] = self.add_executor(self.machine)

    def add_executor(self, machine: Machine) -> str:
        """An executor for a machine; its id."""
        told = json.dumps(machine.config_in(self.data))
        done = self.manage("shell", "-v", "0", "-c", SEED.replace("TOLD", repr(told)))
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout.strip().splitlines()[-1]))

    def close(self) -> None:
        """The machine, too."""
        super().close()
        self.machine.close()
