"""A worker is a single process while it has no work; when it dies, its jobs end with it and stay queued."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.drills import kandev_processes
from tests.drills.deployment import MANAGE, Deployment
from tests.drills.process_groups import descendants, has_ended
from tests.preloaded import PreloadedProcess
from tests.waiting import eventually

pytestmark = pytest.mark.any_database
QUEUE = "from django_q.tasks import async_task; async_task('time.sleep', {})"


@contextmanager
def working(deployment: Deployment) -> Iterator[PreloadedProcess]:
    worker = kandev_processes.start(deployment, str(MANAGE), "qcluster")
    try:
        yield worker
    finally:
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(60)


def queue_sleep(deployment: Deployment, seconds: float) -> None:
    done = deployment.manage("shell", "-v", "0", "-c", QUEUE.format(seconds))
    assert done.returncode == 0, done.stderr


def queued(deployment: Deployment) -> int:
    return len(deployment.rows("SELECT id FROM django_q_ormq"))


def test_worker_has_no_other_process_once_its_job_is_done(deployment: Deployment) -> None:
    queue_sleep(deployment, 0)
    with working(deployment) as worker:
        eventually(lambda: queued(deployment) == 0, timeout=60, describe="the job is done")
        eventually(lambda: not descendants(worker.pid), describe="the job's process has ended")
        worker.terminate()
        assert worker.wait(60) == 0


def test_killed_worker_takes_its_jobs_with_it_and_leaves_them_queued(deployment: Deployment) -> None:
    queue_sleep(deployment, 600)
    queue_sleep(deployment, 600)
    queue_sleep(deployment, 600)
    with working(deployment) as worker:
        eventually(lambda: len(descendants(worker.pid)) == 2, timeout=60, describe="two job processes run")
        family = descendants(worker.pid)
        worker.kill()
        worker.wait(60)
        eventually(lambda: all(map(has_ended, family)), describe="all processes have ended")
    assert queued(deployment) == 3
