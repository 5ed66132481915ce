"""The few tests that failed run once more, alone: what passes then is named, what fails again fails the run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.services import ROOT

UNSTABLE: Final = """
def test_passes_the_second_time(pytestconfig):
    seen = pytestconfig.rootpath / "seen"
    was_there = seen.exists()
    seen.touch()
    assert was_there
"""
FAILING: Final = """
def test_fails():
    assert False
"""


def run(place: Path, tries: str) -> subprocess.CompletedProcess[str]:
    (place / "scripts").mkdir(exist_ok=True)
    shutil.copy(ROOT / "scripts/run_tests", place / "scripts")
    (place / ".venv").symlink_to(ROOT / ".venv")
    (place / "pytest.ini").write_text("[pytest]\n")
    environment = {"PATH": os.environ["PATH"], "KANDEV_SECOND_TRY": tries, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    argv = [str(place / "scripts/run_tests"), "-q"]
    return subprocess.run(argv, cwd=place, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("files", "tries", "status", "words"),
    [
        pytest.param([UNSTABLE], "1", 0, "UNSTABLE, passed only when it ran alone: test_0.py::", id="unstable"),
        pytest.param([UNSTABLE], "0", 1, "1 failed", id="unstable, without a second try"),
        pytest.param([FAILING], "1", 1, "trying again, alone: test_0.py::test_fails", id="fails again"),
        pytest.param([UNSTABLE, FAILING], "1", 1, "2 failed", id="more than are tried again"),
        pytest.param([UNSTABLE, FAILING], "2", 1, "1 failed, 1 passed", id="one of two fails again"),
        pytest.param(["def test_passes(): pass"], "1", 0, "1 passed", id="nothing fails"),
        pytest.param(["import nothing_of_that_name"], "1", 2, "ModuleNotFoundError", id="no test can be collected"),
    ],
)
def test_failed_test_is_tried_again(tmp_path: Path, files: list[str], tries: str, status: int, words: str) -> None:
    for number, text in enumerate(files):
        (tmp_path / f"test_{number}.py").write_text(text)
    done = run(tmp_path, tries)
    assert (done.returncode, words in done.stdout) == (status, True), done.stdout + done.stderr
