"""Management commands as separate processes on the tests' database."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings

from tests import preloaded
from tests.databases import url_of_test_database
from tests.waiting import eventually


def environment(data_dir: Path, **values: str) -> dict[str, str]:
    """Return the environment of a deployment with its own data directory and the tests' database and keys."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("KANDEV_")}
    return {
        **known,
        "KANDEV_DATA_DIR": str(data_dir),
        "KANDEV_DATABASE_URL": url_of_test_database(),
        "KANDEV_SECRET_KEY": settings.SECRET_KEY,
        **values,
    }


def manage(env: Mapping[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return preloaded.run(["manage.py", *args], env=env, timeout=60)


class Running:
    """A running command; ``log`` is its stderr."""

    def __init__(self, env: Mapping[str, str], log: Path, *args: str):
        self._log = log
        with log.open("wb") as stderr:
            self.process = preloaded.PreloadedProcess(
                ["manage.py", *args], env=env, stdout=subprocess.DEVNULL, stderr=stderr
            )

    @property
    def log(self) -> str:
        """Return its output."""
        return self._log.read_text(errors="replace")

    def wait_for_output(self, text: str) -> None:
        """Wait until its output contains ``text``."""
        eventually(lambda: text in self.log, describe=f"{text!r} in {self.log!r}")

    def ends(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def supervising(env: Mapping[str, str], log: Path) -> Iterator[Running]:
    """Run ``manage.py supervise``, which ends with the block."""
    running = Running(env, log, "supervise")
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.ends(signal.SIGKILL)
