"""Few costly gits run at once, and a repository with many hostile sessions delays only itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from executors_app.repositories import slots
from executors_app.repositories.slots import SLOTS, NoFreeSlot, Pool, git_slot
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def data(tmp_path: Path, settings: Any) -> Path:
    settings.KANDEV_DATA_DIR = tmp_path
    return tmp_path


def test_slots_are_limited() -> None:
    with ExitStack() as taken:
        for number in range(SLOTS[Pool.HEAVY]):
            taken.enter_context(git_slot(Pool.HEAVY, f"team-{number}", 0.1))
        with pytest.raises(NoFreeSlot), git_slot(Pool.HEAVY, "another", 0.1):
            pass
        with git_slot(Pool.VIEW, "another", 0.1):
            pass
    with git_slot(Pool.HEAVY, "another", 0.1):
        pass


def test_one_repository_takes_one_slot() -> None:
    with git_slot(Pool.HEAVY, "hostile", 0.1):
        with pytest.raises(NoFreeSlot), git_slot(Pool.HEAVY, "hostile", 0.1):
            pass
        with git_slot(Pool.HEAVY, "another", 0.1):
            pass


def test_slot_outlives_its_process_with_git(tmp_path: Path) -> None:
    """A git of a killed process still counts, because it holds the lock."""
    with git_slot(Pool.HEAVY, "team", 0.1) as locks:
        git = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=locks)
    try:
        with pytest.raises(NoFreeSlot), git_slot(Pool.HEAVY, "team", 0.1):
            pass
    finally:
        git.communicate(b"\n")
    eventually(lambda: _is_free("team"))


def _is_free(account: str) -> bool:
    try:
        with git_slot(Pool.HEAVY, account, 0.1):
            return True
    except NoFreeSlot:
        return False


def _own_file(data: Path, account: str) -> Path:
    with git_slot(Pool.HEAVY, account, 0.1) as (own, _):
        return Path(f"/proc/self/fd/{own}").readlink()


def test_repository_steps_back_after_a_long_call_while_others_run(data: Path) -> None:
    own = _own_file(data, "hostile")
    later = time.time() + 30
    os.utime(own, (later, later))
    with git_slot(Pool.HEAVY, "another", 0.1), pytest.raises(NoFreeSlot), git_slot(Pool.HEAVY, "hostile", 0.1):
        pass
    with git_slot(Pool.HEAVY, "hostile", 0.1):  # nobody else wants anything
        pass


def test_step_back_is_as_long_as_the_call_and_limited(data: Path) -> None:
    own = _own_file(data, "team")
    for used, expected in ((40.0, 40.0), (4000.0, slots.MAX_STEP_BACK)):
        descriptor = os.open(own, os.O_RDWR)
        slots._step_back(descriptor, used)
        os.close(descriptor)
        assert own.stat().st_mtime - time.time() == pytest.approx(expected, abs=20)
