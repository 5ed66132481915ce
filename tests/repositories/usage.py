"""What the gits of a test have used."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_LOGGER = "executors_app.repositories.git"


@dataclass
class GitUsage:
    """Measurements of every process that the runner has ended since the test began."""

    caplog: pytest.LogCaptureFixture

    @property
    def peak_memory(self) -> int:
        """Bytes of the largest one; 0 if none was larger than this process has ever been.

        The kernel lets the figure of a child begin with that of the process which started it, so a smaller one cannot
        be told from our own.
        """
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        largest = int(max(self._values("peak_memory_bytes"), default=0))
        return largest if largest > own else 0

    @property
    def cpu_seconds(self) -> float:
        """Seconds of all together."""
        return sum(self._values("cpu_seconds"))

    def reset(self) -> None:
        """Forget everything so far."""
        self.caplog.clear()

    def _values(self, name: str) -> Iterator[float]:
        for record in self.caplog.records:
            if record.name == _LOGGER and hasattr(record, name):
                yield getattr(record, name)


@pytest.fixture
def usage(caplog: pytest.LogCaptureFixture) -> GitUsage:
    caplog.set_level(logging.DEBUG, _LOGGER)
    return GitUsage(caplog)


def bytes_below(path: Path) -> int:
    """Return the bytes of all files below a directory."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
