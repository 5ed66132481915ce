"""What cannot be loaded before it is needed ends no process."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.template import Engine

from sessions_app.management import preloading
from tests.services import ROOT


@pytest.fixture
def release(tmp_path: Path, monkeypatch: Any) -> Iterator[Path]:
    """A release in which nothing can be loaded except one module."""
    for path, text in {
        "a_release/__init__.py": "",
        "a_release/lacking/__init__.py": "import a_package_that_is_not_installed",
        "a_release/lacking/inner.py": "",
        "a_release/last.py": "",
    }.items():
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(preloading, "PACKAGES", ("a_release",))
    monkeypatch.setattr(preloading, "CACHED_FILES", (("a_release.last", "missing"),))
    importlib.invalidate_caches()
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "a_release"]:
        del sys.modules[name]


def test_package_that_cannot_be_imported_is_left_out(release: Path, caplog: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(preloading, "_templates", list)
    with caplog.at_level(logging.INFO):
        preloading.load_everything()
    assert "a_release.last" in sys.modules
    assert [record.getMessage() for record in caplog.records] == [
        "a_release.lacking cannot be loaded before it is needed",
        "a_release.last.missing cannot be loaded before it is needed",
        "all modules and templates are loaded, except 2",
    ]


def test_template_that_was_removed_meanwhile_is_left_out(release: Path, caplog: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(preloading, "CACHED_FILES", ())
    monkeypatch.setattr(preloading, "_templates", lambda: [(Engine(), "gone.html")])
    preloading.load_everything()
    assert "the template gone.html cannot be loaded before it is needed" in caplog.text


def test_modules_of_other_processes_import_no_module_of_a_web_server(tmp_path: Path) -> None:
    script = (
        "import sys, django; django.setup()\n"
        "from sessions_app.management import preloading\n"
        "preloading.load_everything(for_web=False)\n"
        "print([name for name in sys.modules if name.startswith('sessions_app') and '.views' in name])\n"
    )
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "kandev.settings", "KANDEV_DATA_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"
