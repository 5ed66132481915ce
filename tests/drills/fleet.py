"""Several supervisors on one database, each its own process that a drill stops, continues and kills."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.drills import kandev_processes
from tests.drills.deployment import MANAGE, Deployment, Session
from tests.preloaded import PreloadedProcess
from tests.waiting import PATIENCE, eventually


class SupervisorProcess:
    """A running ``manage.py supervise`` whose first pass is over."""

    def __init__(self, deployment: Deployment, name: str):
        self.deployment, self._log = deployment, deployment.home / f"{name}.log"
        self.process = kandev_processes.start(deployment, str(MANAGE), "supervise", log=self._log.name)
        self.wait_for_output("supervising: ")

    @property
    def log(self) -> str:
        """Return its output."""
        return self._log.read_text(errors="replace")

    def wait_for_output(self, text: str, timeout: float = 60) -> None:
        """Wait until its output contains ``text``."""
        eventually(lambda: text in self.log, timeout=timeout, describe=f"{text!r} in {self.log!r}")

    @property
    def boot_id(self) -> str:
        """Return the name that it uses as owner of leases."""
        rows = self.deployment.rows("SELECT boot_id, process FROM supervisors")
        return next(str(row["boot_id"]) for row in rows if f'"pid": {self.process.pid},' in row["process"])

    def holds(self, session: Session) -> bool:
        """Return whether it holds the session's lease."""
        return bool(session.execution["owner"] == self.boot_id)

    def signal(self, number: int) -> None:
        """Send it a signal; wait for its end if the signal ends it."""
        self.process.send_signal(number)
        if number in {signal.SIGKILL, signal.SIGTERM}:
            self.process.wait(60)


class Fleet:
    """A web process and any number of supervisors."""

    def __init__(self, deployment: Deployment):
        self.deployment = deployment
        self._started: list[PreloadedProcess] = []
        deployment.url, web = kandev_processes.web(deployment)
        self._started.append(web)

    def supervisor(self, name: str) -> SupervisorProcess:
        """Start one more supervisor."""
        made = SupervisorProcess(self.deployment, name)
        self._started.append(made.process)
        return made

    def close(self) -> None:
        """Kill them all."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)


@contextmanager
def fleet(deployment: Deployment) -> Iterator[Fleet]:
    """Yield a fleet that ends with the block."""
    made = Fleet(deployment)
    try:
        yield made
    finally:
        made.close()
