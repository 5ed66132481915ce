"""``manage.py supervise``: the supervisor alone."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from sessions_app.management.output import VisibleCommand
from sessions_app.management.preloading import load_later
from sessions_app.management.startup import (
    add_wait_option,
    refuse_incompatible_database,
    report_database_errors,
    restrict_in_background,
    set_private_umask,
    wait_for_database,
)
from sessions_app.supervisor.leases import LockUnusable, SupervisorLock
from sessions_app.supervisor.loop import SupervisorLoop

log = logging.getLogger(__name__)
LOCK_POLL_SECONDS = 0.5
"""Seconds between two attempts to take the lock of another supervisor."""


class Command(VisibleCommand):
    """Supervise the sessions of this database until SIGTERM; agents keep running."""

    help = "Run the supervisor, which starts and recovers sessions, until SIGTERM. Agents keep running."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--no-sweep", action="store_true", help="skip the initial sweep")
        add_wait_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until stopped. Exits with status 2 and one line if the database cannot be used at the start."""
        set_private_umask()
        restrict_in_background(Path(settings.KANDEV_DATA_DIR))
        # A full collection pauses a transaction for a tenth of a second: imported modules stay, and others are rare.
        gc.freeze()
        gc.set_threshold(10_000, 20, 50)
        load_later(for_web=False)
        try:
            if options["wait_for_database"]:
                wait_for_database()
            with report_database_errors():
                refuse_incompatible_database()
                asyncio.run(_supervise(first_sweep=not options["no_sweep"]))
        except LockUnusable as error:
            raise CommandError(str(error), returncode=2) from error


async def _supervise(*, first_sweep: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with SupervisorLock("supervise") as lock:
        if await _wait_for_lock(lock, stop):
            await SupervisorLoop().run(stop, first_sweep=first_sweep)


async def _wait_for_lock(lock: SupervisorLock, stop: asyncio.Event) -> bool:
    """Wait for the lock and log that once. Return False if stopped meanwhile."""
    logged = False
    while not lock.take():
        if not logged:
            log.warning("another supervisor is using this database; waiting until it stops")
            logged = True
        try:
            await asyncio.wait_for(stop.wait(), LOCK_POLL_SECONDS)
        except TimeoutError:
            continue
        return False
    return not stop.is_set()
