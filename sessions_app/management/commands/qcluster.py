"""``manage.py qcluster``: the worker, django-q2's own, whose processes end with the first of them (design 2).

Left alone by a SIGKILL they would go on beside the next worker, and after an upgrade with the code of before.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from django.core.management.base import CommandError
from django_q.management.commands.qcluster import Command as Cluster

from sessions_app.management.private_files import make_private
from sessions_app.management.processes import end_with


class Command(Cluster):  # type: ignore[misc]
    """Takes planned and slow work until it is told to end."""

    help = "Takes planned and slow work until it is told to end."

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; every process that is forked from here on, however deep, ends with whoever forked it.

        Exit status 2 where it cannot begin, as without a database; the process that it begins with has said why.
        """
        make_private()
        os.register_at_fork(before=_remember, after_in_child=_end_with_the_forker)
        try:
            super().handle(*args, **options)
        except RuntimeError as error:
            raise CommandError(str(error), returncode=2) from error


_forker = 0


def _remember() -> None:
    global _forker  # noqa: PLW0603 - the one thing that a child has of the moment before it
    _forker = os.getpid()


def _end_with_the_forker() -> None:
    ask = end_with(_forker, signal.SIGKILL)
    if ask is not None:
        ask()
