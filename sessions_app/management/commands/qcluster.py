"""``manage.py qcluster``: django-q2's worker, whose processes end with the one that started them.

Without that, a SIGKILL of the first process would leave the others running beside the next worker, after an upgrade
with the old code.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from django.core.management.base import CommandError
from django_q.management.commands.qcluster import Command as Cluster

from sessions_app.management.child_processes import make_parent_death_hook
from sessions_app.management.startup import set_private_umask


class Command(Cluster):  # type: ignore[misc]
    """Run the background worker until it is stopped."""

    help = "Run the background worker until it is stopped."

    def handle(self, *args: Any, **options: Any) -> None:
        """Run. Every process that is forked from here on ends with the process that forked it.

        Exits with status 2 if the worker cannot start, for example without a database; the reason is logged.
        """
        set_private_umask()
        os.register_at_fork(before=_remember_parent, after_in_child=_end_with_parent)
        try:
            super().handle(*args, **options)
        except RuntimeError as error:
            raise CommandError(str(error), returncode=2) from error


_parent_pid = 0


def _remember_parent() -> None:
    global _parent_pid  # noqa: PLW0603 - the forked child needs its parent's pid
    _parent_pid = os.getpid()


def _end_with_parent() -> None:
    request_death_signal = make_parent_death_hook(_parent_pid, signal.SIGKILL)
    if request_death_signal is not None:
        request_death_signal()
