"""Tests of ``tests.preloaded``: its processes behave as if the interpreter had been started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import preloaded
from tests.preloaded import ROOT, PreloadedProcess

OPEN_FILES = "import os; print(sorted(os.listdir('/proc/self/fd')))"
UNREAD_SETTINGS = "import sys; from django.conf import settings; print(settings.configured, 'kandev' in sys.modules)"
RECORDED_READS = """
import importlib, os
from tests.preloaded_server import LIBRARIES, OURS
for name in LIBRARIES:
    importlib.import_module(name)
reads = []
class Recording(type(os.environ)):
    def __getitem__(self, name):
        reads.append(name)
        return super().__getitem__(name)
os.environ.__class__ = Recording
umask = os.umask(0o22)
for name in OURS:
    importlib.import_module(name)
print([name for name in reads if name.startswith(("KANDEV", "DJANGO"))], os.umask(umask) == 0o22)
"""
LOADS_LATE = "from sessions_app.management import preloading; print(preloading.AFTER > 3600)"
WAITS = ["-c", "import sys; print('ready', flush=True); sys.stdin.read()"]


@pytest.mark.parametrize(
    ("arguments", "status", "stdout", "stderr"),
    [
        pytest.param(["-c", "import sys; print(sys.argv)", "a"], 0, "['-c', 'a']\n", "", id="code"),
        pytest.param(["-m", "tests.house.argv_module", "a"], 0, "__main__ ['a']\n", "", id="module"),
        pytest.param([str(Path(__file__).with_name("argv_module.py")), "a"], 0, "__main__ ['a']\n", "", id="script"),
        pytest.param(["-c", "import sys; sys.exit(3)"], 3, "", "", id="status"),
        pytest.param(["-c", "import sys; sys.exit('no')"], 1, "", "no\n", id="message"),
        pytest.param(["-c", "import atexit; atexit.register(print, 'end')"], 0, "end\n", "", id="exit handlers"),
        pytest.param(["-c", "import os; print(sorted(os.environ))"], 0, "['ONLY']\n", "", id="environment"),
        pytest.param(["-c", OPEN_FILES], 0, "['0', '1', '2', '3']\n", "", id="files"),
        pytest.param(["-c", UNREAD_SETTINGS], 0, "False False\n", "", id="settings"),
        pytest.param(["-c", LOADS_LATE], 0, "True\n", "", id="the rest is not loaded"),
        pytest.param(["-c", "import os; os.kill(os.getpid(), 9)"], -9, "", "", id="killed"),
    ],
)  # fmt: skip
def test_program_runs_as_in_a_new_interpreter(arguments: list[str], status: int, stdout: str, stderr: str) -> None:
    done = preloaded.run(arguments, env={"ONLY": "this"})
    assert (done.returncode, done.stdout, done.stderr) == (status, stdout, stderr)


def test_our_modules_that_are_imported_first_do_not_depend_on_the_environment() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RECORDED_READS], capture_output=True, text=True, timeout=120, cwd=ROOT, check=True
    )
    assert done.stdout == "[] True\n"


def test_program_uses_its_own_copy_of_our_code(tmp_path: Path) -> None:
    (tmp_path / "sessions_app").mkdir()
    (tmp_path / "sessions_app/__init__.py").write_text("OWN = True\n")
    done = preloaded.run(["-c", "import sessions_app; print(sessions_app.OWN)"], env={}, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_program_receives_signals_and_input() -> None:
    with PreloadedProcess(WAITS, env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0)
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
        process.kill()  # no process has this pid any more, as far as we know


def test_program_gets_its_own_session_and_the_descriptors_that_it_keeps() -> None:
    reading, writing = os.pipe()
    code = f"import os; os.write({writing}, str(os.getsid(0)).encode())"
    process = PreloadedProcess(["-c", code], env={}, keeps=[writing], start_new_session=True)
    assert process.wait(60) == 0
    assert os.read(reading, 20) == str(process.pid).encode()
    os.close(reading)
    os.close(writing)


def test_command_that_takes_too_long_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        preloaded.run(["-c", "import time; time.sleep(600)"], env={}, timeout=0.1)
