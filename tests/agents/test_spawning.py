"""Environments of child processes hold no secret of the control plane; crash points."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from executors_app.machine import crash_points
from executors_app.machine.process import spawning
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.agents.conftest import ROOT


def test_only_allowed_variables_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("KANDEV_SECRET_KEY", "DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "GIT_DIR", "PYTHONPATH", "LD_PRELOAD")
    for name in (*secrets, "LC_ALL", "TZ", "https_proxy"):
        monkeypatch.setenv(name, "x")

    built = spawning.build_environment({}, {})

    assert not set(secrets) & set(built)
    assert {"LC_ALL", "TZ", "https_proxy", "PATH"} <= set(built)


def test_execution_marker_overrides_the_requested_environment() -> None:
    built = spawning.build_environment(
        {EXECUTION_MARKER: "forged", "KANDEV_X": "asked for", "PATH": "/mine"}, {EXECUTION_MARKER: "true"}
    )

    assert built[EXECUTION_MARKER] == "true"
    assert built["KANDEV_X"] == "asked for"
    assert built["PATH"] == "/mine"
    assert {name for name in built if name.startswith("KANDEV_")} == {EXECUTION_MARKER, "KANDEV_X"}


# -- crash points


def _run(spec: str, directory: Path, times: int = 1) -> int:
    script = (
        "from executors_app.machine import crash_points\nfrom executors_app.machine.process import spawning\n"
        f"spawning.arm_crash_point()\nfor _ in range({times}): crash_points.reached('sweep.decided')"
    )
    armed = {
        spawning.CRASH_AT_VARIABLE: spec,
        spawning.CRASH_DIR_VARIABLE: str(directory),
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run([sys.executable, "-c", script], env={**os.environ, **armed}, check=False).returncode


@pytest.mark.parametrize(
    ("spec", "times", "code"),
    [
        ("sweep.decided", 1, -signal.SIGKILL),
        ("sweep.decided:2", 1, 0),
        ("sweep.decided:2", 2, -signal.SIGKILL),
        ("sweep.written", 3, 0),
    ],
)
def test_armed_process_dies_at_its_crash_point(spec: str, times: int, code: int, tmp_path: Path) -> None:
    assert _run(spec, tmp_path, times) == code
    assert (tmp_path / "sweep.decided").exists() == bool(code)
    noted = tmp_path / "sweep.decided.log"
    assert noted.exists() == spec.startswith("sweep.decided")
    assert not noted.exists() or len(noted.read_text().splitlines()) == times


def test_crash_point_can_kill_once_for_each_session(tmp_path: Path) -> None:
    script = (
        "from executors_app.machine import crash_points\n"
        f"crash_points.arm('sweep.drained:each,sweep.decided', {str(tmp_path)!r})\n"
        "for session in 'one', 'two': crash_points.reached('sweep.drained', session)"
    )
    codes = [subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode for _ in range(3)]
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert (tmp_path / "sweep.drained.log").read_text().split() == ["one", "one", "two", "one", "two"]


def test_crash_point_kills_once_so_the_restarted_process_lives(tmp_path: Path) -> None:
    assert _run("sweep.decided", tmp_path) == -signal.SIGKILL
    assert _run("sweep.decided", tmp_path) == 0


def test_unknown_crash_point_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sweep\.decided"):
        crash_points.reached("sweep.decide")
    with pytest.raises(ValueError, match=r"agentctl\.token_kept"):
        crash_points.arm("agentctl.token_keep", tmp_path)
    with pytest.raises(ValueError, match="not a number of times"):
        crash_points.arm("sweep.decided:0", tmp_path)


def test_unarmed_process_passes_every_crash_point() -> None:
    for name in crash_points.POINT_NAMES:
        crash_points.reached(name)
