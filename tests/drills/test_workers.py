"""A worker consists of several processes; when one dies, the others do not keep working."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from tests.drills import kandev_processes
from tests.drills.deployment import MANAGE, Deployment
from tests.drills.process_groups import descendants, has_ended
from tests.waiting import eventually

ALL = 4
"""The sentinel, the pusher, the monitor and at least one worker process."""


def test_killing_the_main_worker_process_ends_all_the_others(deployment: Deployment) -> None:
    worker = kandev_processes.start(deployment, str(MANAGE), "qcluster")
    try:
        eventually(lambda: len(descendants(worker.pid)) >= ALL, timeout=60, describe="it works")
        family = descendants(worker.pid)
        worker.kill()
        worker.wait(30)
        eventually(lambda: all(map(has_ended, family)), timeout=30, describe="all of it has ended")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(30)
