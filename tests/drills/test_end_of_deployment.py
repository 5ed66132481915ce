"""The end of a deployment leaves no process of its sessions behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from executors_app.wire.protocol import EXECUTION_MARKER
from tests.drills.deployment import Deployment
from tests.drills.process_groups import has_ended


class _Unstoppable(Deployment):
    """A deployment whose server does not end in time."""

    def kill_server(self, number: int = 0) -> None:
        raise subprocess.TimeoutExpired("serve", 30)


def test_executions_end_even_if_the_server_does_not(tmp_path: Path) -> None:
    deployment = _Unstoppable(tmp_path)
    (deployment.agentctls / "an-execution").mkdir(parents=True)
    env = {"PATH": os.environ["PATH"], EXECUTION_MARKER: "an-execution"}
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        deployment.server = process  # type: ignore[assignment]  # only whether there is one matters
        with pytest.raises(subprocess.TimeoutExpired):
            deployment.close()
        assert has_ended(process.pid)
