"""``manage.py qcluster``: the background worker, whose processes end with the one that started them.

Without that, a SIGKILL of the first process would leave the others running beside the next worker, after an upgrade
with the old code.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from datetime import datetime, timedelta
from multiprocessing.context import ForkProcess
from queue import SimpleQueue
from typing import Any, Final

from django.core.management.base import CommandParser
from django.db import Error, connections
from django.utils import timezone
from django_q.brokers import Broker, get_broker
from django_q.conf import Conf
from django_q.management.commands.qcluster import Command as Cluster
from django_q.models import OrmQ
from django_q.monitor import monitor
from django_q.pusher import pusher
from django_q.scheduler import scheduler
from django_q.worker import worker

from executors_app.backoff import Backoff
from sessions_app.hosts.heartbeats import Heartbeat
from sessions_app.hosts.models import Role
from sessions_app.hosts.troubles import TroubleWatch
from sessions_app.kernel import wakeups
from sessions_app.kernel.beat_file import BeatFile
from sessions_app.management.child_processes import (
    leave_signal_socket,
    make_parent_death_hook,
    signal_socket,
    wait_for_signal_or_exit,
)
from sessions_app.management.preloading import Preloading
from sessions_app.management.startup import (
    add_wait_option,
    refuse_incompatible_database,
    report_database_errors,
    set_private_umask,
    wait_for_database,
)
from sessions_app.worker import (
    maintenance,  # noqa: F401 - so that no job has to import them
    notifications,  # noqa: F401 - so that no job has to import them
    workflows,  # noqa: F401 - so that no job has to import them
)


class Command(Cluster):  # type: ignore[misc]
    """Run the background worker until it is stopped."""

    help = "Run the background worker until it is stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        super().add_arguments(parser)
        add_wait_option(parser)

    def handle(self, *args: Any, run_once: bool = False, cluster_name: str | None = None, **options: Any) -> None:
        """Run. Every process that is forked from here on ends with the process that forked it.

        Exits with status 2 and one line if the database cannot be used at the start.
        """
        set_private_umask()
        os.register_at_fork(before=_remember_parent, after_in_child=_end_with_parent)
        if options["wait_for_database"]:
            wait_for_database()
        with report_database_errors():
            refuse_incompatible_database()
            Worker(cluster_name).run(once=run_once)


_parent_pid = 0


def _remember_parent() -> None:
    global _parent_pid  # noqa: PLW0603 - the forked child needs its parent's pid
    _parent_pid = os.getpid()


def _end_with_parent() -> None:
    request_death_signal = make_parent_death_hook(_parent_pid, signal.SIGKILL)
    if request_death_signal is not None:
        request_death_signal()


log = logging.getLogger(__name__)
POLL_EVERY: Final = 1.0
"""Seconds between two checks whether the database has changed, and with it perhaps the queue."""
SCHEDULE_EVERY: Final = 30.0
"""Seconds between two checks of the schedules, of which the most frequent one is due every minute."""
SOON: Final = timedelta(seconds=2 * SCHEDULE_EVERY)
"""The worker waits for a job that is due within this time; otherwise it reads the queue with the schedules."""
KILL_AFTER: Final = 15.0
"""Seconds that a job gets to end on its own after its timeout."""
_STOP: Final = "STOP"
"""What ends django-q2's loops over a queue."""
_FORKING: Final = multiprocessing.get_context("fork")


class Worker:
    """Runs the jobs of one queue until it is stopped; used only in the main thread of a process without others."""

    def __init__(self, queue: str | None = None):
        self.broker: Broker = get_broker(queue)
        self._running: dict[ForkProcess, float] = {}
        """The process of each job, and when it is killed (monotonic clock)."""
        self._taken: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._version = ""
        """The version of the database in which no job was due soon; empty: one may be due."""
        self._backoff = Backoff()
        self._heartbeat = Heartbeat(Role.WORKER)
        self._beat_file = BeatFile()
        self._troubles = TroubleWatch()
        self._preloading = Preloading(for_web=False)
        self._stops = False

    def run(self, *, once: bool = False) -> None:
        """Run jobs until SIGTERM or SIGINT, and wait for those that run then; ``once``: only those that wait now.

        A job whose process is killed is still in the queue, and is handed out again after ``retry`` seconds. Raises
        django.db.Error if the database cannot be used at the start.
        """
        self.next_due()
        next_schedules = time.monotonic() + SCHEDULE_EVERY
        with signal_socket() as signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._stop)
            while not self._stops:
                if not once:
                    self._heartbeat.beat_if_due()
                    self._troubles.look_if_due()
                    self._preloading.load_if_due()
                if time.monotonic() >= next_schedules:
                    scheduler(broker=self.broker)
                    next_schedules, self._version = time.monotonic() + SCHEDULE_EVERY, ""
                self._start_jobs()
                if once and not self._has_due_jobs():
                    break
                self._wait(signals, max(POLL_EVERY, self._backoff.remaining))
            if self._running and not once:
                self._heartbeat.announce_stop()
            while self._running:
                if not once:
                    self._heartbeat.beat_if_due()
                self._wait(signals, POLL_EVERY)
            self._heartbeat.end_quietly()

    def next_due(self) -> datetime | None:
        """Return when the next job of the queue is due, or None. Unlike the broker it keeps its connection.

        A running job is due when it would be handed out again, in case its process has died.
        """
        waiting = OrmQ.objects.using(Conf.ORM).filter(key=self.broker.list_key).order_by("lock")
        due: datetime | None = waiting.values_list("lock", flat=True).first()
        return due

    def _stop(self, *_: object) -> None:
        self._stops = True

    def _start_jobs(self) -> None:
        """Take as many jobs from the queue as may run now, and start them."""
        one_round = threading.Event()
        one_round.set()
        try:
            while len(self._running) < Conf.WORKERS and not self._stops and self._has_due_jobs():
                pusher(self._taken, one_round, self.broker)
                while not self._taken.empty():
                    self._start(self._taken.get())
        except Error:
            log.exception("the queue cannot be read, trying again")
            self._close_connections()
            self._backoff.record_failure()
        else:
            self._backoff.reset()

    def _has_due_jobs(self) -> bool:
        """Whether a job is due; asks the queue only if one may have become due since the last time."""
        version = wakeups.database_version()  # before the queue: what is committed between the two counts as new
        if version == self._version:
            return False
        due, now = self.next_due(), timezone.now()
        self._version = ""
        if due is None or due > now + SOON:
            self._version = version
        return due is not None and due < now

    def _close_connections(self) -> None:
        connections.close_all()
        self._version = ""  # versions of two connections cannot be compared

    def _start(self, job: dict[str, Any]) -> None:
        self._close_connections()  # a forked process must not use its parent's connections
        process = _FORKING.Process(target=self._run_job, args=(job,), name=f"job-{job['id']}", daemon=True)
        process.start()
        self._running[process] = time.monotonic() + (job.get("timeout") or Conf.TIMEOUT) + KILL_AFTER

    def _run_job(self, job: dict[str, Any]) -> None:
        """Run one job and store its result, in its own process."""
        leave_signal_socket()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the worker waits for its jobs
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        jobs: SimpleQueue[Any] = SimpleQueue()
        results: SimpleQueue[Any] = SimpleQueue()
        for one in (job, _STOP):
            jobs.put(one)
        worker(jobs, results, _FORKING.Value("f", -1), Conf.TIMEOUT)
        results.put(_STOP)
        monitor(results, self.broker)

    def _wait(self, signals: socket.socket, seconds: float) -> None:
        """Wait for a signal or the end of a job, at most ``seconds``, then forget the jobs that have ended."""
        self._beat_file.touch()
        wait_for_signal_or_exit(signals, self._running, seconds)
        now = time.monotonic()
        for process, killed_at in list(self._running.items()):
            if now >= killed_at:
                log.error("%s did not end at its timeout; killing it", process.name)
                process.kill()
            if process.exitcode is not None:
                process.close()
                del self._running[process]
