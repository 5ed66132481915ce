"""A file with the results of one benchmark run: its figures, commit, date and machine."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from tests.bench.figures import Figure, Floor, Point, Skipped
from tests.services import ROOT

ROWS: Final[Mapping[str, type[Any]]] = {"figures": Figure, "points": Point, "floors": Floor, "skipped": Skipped}
"""The lists in a file."""


class NoBenchFile(ValueError):
    """The file was not written by ``make bench``."""


@dataclass(frozen=True, slots=True)
class BenchFile:
    """The results of one run."""

    commit: str
    dirty: bool
    """Whether the working tree had uncommitted changes."""
    date: str
    """The end of the run: ISO 8601, UTC."""
    machine: Mapping[str, str]
    quick: bool
    """Whether the counts were tiny, only to check that everything runs."""
    figures: list[Figure] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    floors: list[Floor] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    """Parts without rows."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """The seconds that each part took, by name."""

    @classmethod
    def of_now(cls, *, quick: bool, **measured: Any) -> Self:
        """Return a file of what was just measured: the lists, and the seconds of each part."""
        date = datetime.now(UTC).isoformat(timespec="seconds")
        dirty = bool(_git("status", "--porcelain", "--untracked-files=no"))
        return cls(_git("rev-parse", "HEAD"), dirty, date, machine(), quick, **measured)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; raise NoBenchFile, which says what is wrong."""
        try:
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            document.setdefault("skipped", [])  # earlier files have none
            for name, kind in ROWS.items():
                document[name] = [kind(**one) for one in document[name]]
            return cls(**document)
        except OSError as error:
            raise NoBenchFile(f"{path} cannot be read: {error.strerror}.") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise NoBenchFile(f"{path} is no file that `make bench` has written: {error}.") from error

    def write(self, path: Path) -> None:
        """Write one row per line, so that two files can be compared with ``diff``."""
        document = asdict(self)
        rows = {name: document.pop(name) for name in ROWS}
        lists = [f'"{name}": [\n{_lines(some)}\n]' for name, some in rows.items()]
        head = json.dumps(document, indent=1, ensure_ascii=False).removesuffix("\n}")
        path.write_text(head + ",\n" + ",\n".join(lists) + "\n}\n", encoding="utf-8")


def _lines(rows: list[Any]) -> str:
    return ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)


def machine() -> dict[str, str]:
    """Return what figures depend on besides the code; the host's name is left out."""
    return {
        "cores": str(os.cpu_count()),
        "processor": _labelled_value("/proc/cpuinfo", "model name"),
        "memory": _labelled_value("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _labelled_value(path: str, name: str) -> str:
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        label, _, value = line.partition(":")
        if label.strip() == name:
            return value.strip()
    return "unknown"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"
