"""Run the scripts of ``deploy/`` against a test deployment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.drills.deployment import Deployment
from tests.postgresql import binaries
from tests.services import ROOT


def run_script(
    deployment: Deployment, script: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script of ``deploy/`` in a deployment's environment; ``environment`` overrides it."""
    python = Path(sys.executable)
    tools = [str(binaries() or python.parent), os.environ["PATH"]]
    defaults = {"MANAGE": f"{python} manage.py", "PYTHON": str(python), "PATH": os.pathsep.join(tools)}
    return subprocess.run(
        [str(ROOT / "deploy" / script), *arguments],
        cwd=ROOT,
        env=deployment.env | defaults | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
