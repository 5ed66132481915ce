"""Build agentctl as a wheel of its own: the packages of its image, with its pinned dependencies."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from executors_app import __version__
from tests.services import ROOT

PACKAGES: Final = ("wire", "machine", "agentctl", "demo_agent")
"""What the image of agentctl copies, below ``executors_app``."""
UV: Final = Path(sys.executable).with_name("uv")
_PINNED: Final = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)
_PROJECT: Final = """\
[project]
name = "kandev-agentctl"
version = "{version}"
requires-python = ">=3.11,<3.14"
dependencies = {dependencies}

[build-system]
requires = ["uv_build"]
build-backend = "uv_build"

[tool.uv.build-backend]
module-name = "executors_app"
module-root = ""
"""


def pinned_dependencies() -> dict[str, str]:
    """Return the versions that the lock file of agentctl pins, by package."""
    return dict(_PINNED.findall((ROOT / "requirements" / "agentctl.txt").read_text()))


def build_wheel(into: Path) -> Path:
    """Write the wheel to a directory and return its path. The same code makes the same bytes."""
    dependencies = [f"{name}=={version}" for name, version in sorted(pinned_dependencies().items())]
    with tempfile.TemporaryDirectory() as scratch:
        package = Path(scratch, "executors_app")
        package.mkdir()
        shutil.copy(ROOT / "executors_app" / "__init__.py", package)
        for name in PACKAGES:
            shutil.copytree(ROOT / "executors_app" / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
        text = _PROJECT.format(version=__version__, dependencies=dependencies)
        Path(scratch, "pyproject.toml").write_text(text)
        command: list[str | Path] = [
            UV,
            "build",
            "--wheel",
            "--no-build-isolation",
            "--offline",
            "--quiet",
            "--out-dir",
            into,
            scratch,
        ]
        subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": "1795824000"})
    (into / ".gitignore").unlink(missing_ok=True)  # uv writes one that ignores everything
    (made,) = into.glob("*.whl")
    return made
