"""The files of this repository, as git lists them: without what an installation or a build leaves among them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.services import ROOT


def source_files(*folders: str, suffix: str = ".py") -> list[Path]:
    """Return the files below these folders that git tracks or would track, in order."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    paths = (ROOT / name for name in sorted(listed.split("\0")) if name.endswith(suffix))
    return [path for path in paths if path.is_file()]
