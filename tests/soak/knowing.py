"""Control-plane processes that know the stand-ins as a runtime: ``python -m tests.soak.knowing PROGRAM``.

``PROGRAM`` is ``supervisor``, or ``web`` with daphne's arguments behind it. The address of the stand-ins is
in ``SOAK_STAND_INS``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

import django
from django.db import DatabaseError

from executors_app.domain import ExecutionFacts
from tests.supervisor.stand_ins import StandIns

ADDRESS = "SOAK_STAND_INS"
NO_DATABASE = 2
"""Exit status of a supervisor or a worker that cannot use the database when it begins."""


class Lasting(StandIns):
    """Stand-ins whose journals outlive them, as an agentctl's lie on its disk."""

    def unread_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """What the dead one had written."""
        with urllib.request.urlopen(f"{self.url}/left/{execution.id}", timeout=10) as answer:
            lines: list[dict[str, Any]] = json.loads(answer.read())
        return [line for line in lines if line["epoch"] != epoch or line["seq"] > after]


def know_them() -> None:
    """From now on the runtime is there."""
    from executors_app import plugins  # noqa: PLC0415  (models want settings)

    made = Lasting(os.environ[ADDRESS])
    known = {**plugins.runtimes(), made.name: made}
    plugins.runtimes = lambda: known


def _supervise() -> None:
    from sessions_app.supervisor.loop import SupervisorLoop  # noqa: PLC0415  (models want settings)

    async def run() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await SupervisorLoop().run(stop)

    try:
        asyncio.run(run())
    except DatabaseError as error:  # as ``manage.py supervise`` says it
        sys.stderr.write(f"the database cannot be used: {error}\n")
        sys.exit(NO_DATABASE)


def main() -> None:
    """Run the program until it ends."""
    django.setup()
    know_them()
    if sys.argv[1] == "supervisor":
        _supervise()
        return
    from daphne.cli import CommandLineInterface  # noqa: PLC0415  (it installs a reactor)

    CommandLineInterface().run(sys.argv[2:])


if __name__ == "__main__":
    main()
