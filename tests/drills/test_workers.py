"""A worker is more than one process, and no death of one leaves the others at work."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from tests.drills import parts
from tests.drills.deployment import MANAGE, Deployment
from tests.drills.families import descendants
from tests.waiting import eventually

ALL = 4
"""A sentinel, what it hands out and takes in with, and at least one that works."""


def test_a_worker_whose_first_process_is_killed_leaves_none_behind(deployment: Deployment) -> None:
    worker = parts.start(deployment, str(MANAGE), "qcluster")
    try:
        eventually(lambda: len(descendants(worker.pid)) >= ALL, timeout=60, describe="it works")
        family = descendants(worker.pid)
        worker.kill()
        worker.wait(30)
        eventually(lambda: not [pid for pid in family if Path(f"/proc/{pid}").exists()], describe="all of it has ended")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(30)
