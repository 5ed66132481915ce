"""The project as it was, where the clone has its history."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.services import ROOT


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-c", f"safe.directory={ROOT}", *words]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True)


def before_last_change_of(path: str, into: Path) -> Path:
    """The whole project before the last commit that changed ``path``, in ``into``; skips where nobody knows it."""
    commits = _git("log", "--format=%H", "-2", "--", path).stdout.decode().split()
    packed = _git("archive", "--format=tar", commits[1]) if len(commits) == 2 else None
    if packed is None or packed.returncode:
        pytest.skip("this clone has no history")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tar:
        tar.extractall(into, filter="data")
    return into
