"""``manage.py qcluster``: the background worker, whose processes end with the one that started them.

Without that, a SIGKILL of the first process would leave the others running beside the next worker, after an upgrade
with the old code.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from django.core.management.base import CommandError
from django.db import Error
from django_q.management.commands.qcluster import Command as Cluster

from sessions_app.management.child_processes import make_parent_death_hook
from sessions_app.management.startup import set_private_umask
from sessions_app.management.worker import Worker


class Command(Cluster):  # type: ignore[misc]
    """Run the background worker until it is stopped."""

    help = "Run the background worker until it is stopped."

    def handle(self, *args: Any, run_once: bool = False, cluster_name: str | None = None, **options: Any) -> None:
        """Run. Every process that is forked from here on ends with the process that forked it.

        Exits with status 2 and one line if the database cannot be used at the start.
        """
        set_private_umask()
        os.register_at_fork(before=_remember_parent, after_in_child=_end_with_parent)
        try:
            Worker(cluster_name).run(once=run_once)
        except Error as error:
            raise CommandError(f"the database cannot be used: {str(error).splitlines()[0]}", returncode=2) from error


_parent_pid = 0


def _remember_parent() -> None:
    global _parent_pid  # noqa: PLW0603 - the forked child needs its parent's pid
    _parent_pid = os.getpid()


def _end_with_parent() -> None:
    request_death_signal = make_parent_death_hook(_parent_pid, signal.SIGKILL)
    if request_death_signal is not None:
        request_death_signal()
