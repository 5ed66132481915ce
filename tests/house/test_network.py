"""Each test process has a network of its own, which the processes that it starts can reach."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import OWN_NETWORK
from tests.services import ROOT

NETWORK = Path("/proc/self/ns/net")


@pytest.mark.parametrize(
    ("variables", "leaves"),
    [
        pytest.param({}, False, id="without xdist"),
        pytest.param({"PYTEST_XDIST_WORKER": "gw0"}, True, id="a worker"),
        pytest.param({"PYTEST_XDIST_WORKER": "gw0", OWN_NETWORK: "1"}, False, id="started by a worker"),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create networks")
def test_only_the_worker_itself_leaves_the_network(variables: dict[str, str], leaves: bool) -> None:
    theirs = {name: value for name, value in os.environ.items() if name not in ("PYTEST_XDIST_WORKER", OWN_NETWORK)}
    argv = [sys.executable, "-c", f"import os, tests.environment; print(os.readlink('{NETWORK}'))"]
    done = subprocess.run(argv, cwd=ROOT, env=theirs | variables, capture_output=True, text=True, check=True)
    assert (done.stdout.strip() != str(NETWORK.readlink())) is leaves
