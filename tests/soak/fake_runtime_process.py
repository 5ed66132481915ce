"""Control-plane processes with the fake agentctls as a runtime: ``python -m tests.soak.fake_runtime_process PROGRAM``.

``PROGRAM`` is ``supervisor``, or ``web`` followed by the arguments of daphne. The address of the fake agentctls is
in ``SOAK_FAKE_AGENTCTLS``.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

import django
from django.db import DatabaseError

from executors_app.wire.executions import ExecutionFacts
from tests.supervisor.fake_agentctl_server import FakeAgentctlRuntime
from tests.supervisor.supervisor_process import register_runtime, run_supervisor

ADDRESS = "SOAK_FAKE_AGENTCTLS"
NO_DATABASE = 2
"""Exit status of a supervisor or a worker that cannot use the database at its start."""


class PersistentFakeRuntime(FakeAgentctlRuntime):
    """A runtime of fake agentctls whose journals outlive them, like those of an agentctl on disk."""

    def unread_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """Return the journal lines of a fake agentctl that ended, after a position."""
        with urllib.request.urlopen(f"{self.url}/journals/{execution.id}", timeout=10) as answer:
            lines: list[dict[str, Any]] = json.loads(answer.read())
        return [line for line in lines if line["epoch"] != epoch or line["seq"] > after]


def _supervise() -> None:
    try:
        run_supervisor()
    except DatabaseError as error:  # the same message as ``manage.py supervise``
        sys.stderr.write(f"the database cannot be used: {error}\n")
        sys.exit(NO_DATABASE)


def main() -> None:
    """Run the program until it ends."""
    django.setup()
    register_runtime(PersistentFakeRuntime(os.environ[ADDRESS]))
    if sys.argv[1] == "supervisor":
        _supervise()
        return
    from daphne.cli import CommandLineInterface  # noqa: PLC0415  (it installs a reactor)

    CommandLineInterface().run(sys.argv[2:])


if __name__ == "__main__":
    main()
