"""``manage.py qcluster``: the worker, django-q2's own, whose processes end with the first of them (design 2).

Left alone by a SIGKILL they would go on beside the next worker, and after an upgrade with the code of before.
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
    """Takes planned and slow work until it is told to end."""

    help = "Takes planned and slow work until it is told to end."

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; every process that is forked from here on, however deep, ends with whoever forked it.

        Exit status 2 where it cannot begin, as without a database; the process that it begins with has said why.
        """
        set_private_umask()
        os.register_at_fork(before=_remember_parent, after_in_child=_end_with_parent)
        try:
            super().handle(*args, **options)
        except RuntimeError as error:
            raise CommandError(str(error), returncode=2) from error


_parent_pid = 0


def _remember_parent() -> None:
    global _parent_pid  # noqa: PLW0603 - the forked child has to know who forked it
    _parent_pid = os.getpid()


def _end_with_parent() -> None:
    ask = make_parent_death_hook(_parent_pid, signal.SIGKILL)
    if ask is not None:
        ask()
