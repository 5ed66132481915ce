"""Earlier versions of the project, if the clone has its history."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.db.models import Model

from tests.services import ROOT


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-c", f"safe.directory={ROOT}", *words]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True)


def apps_with_old_labels() -> SimpleNamespace:
    """Return a replacement for the ``apps`` of data migrations that finds today's models in any app."""

    def get_model(label: str, name: str) -> type[Model]:
        return next(model for model in apps.get_models() if model.__name__ == name)

    return SimpleNamespace(get_model=get_model)


def before_last_change_of(path: str, into: Path) -> Path:
    """Extract the project before the last commit that changed ``path`` to ``into``; skip the test if it is unknown."""
    commits = _git("log", "--format=%H", "-2", "--", path).stdout.decode().split()
    return project_at(commits[1] if len(commits) == 2 else "", into)


def project_at(commit: str, into: Path) -> Path:
    """Extract the whole project as of ``commit`` to ``into``; skip the test where the clone does not have it."""
    packed = _git("archive", "--format=tar", commit) if commit else None
    if packed is None or packed.returncode:
        pytest.skip("this clone has no history")
    into.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(into)], input=packed.stdout, check=True)
    return into
