"""Measure how much room Kandev's data takes on this host, in bounded time.

Agents decide how many files there are: what takes longer than its time to count is unknown, and is shown as unknown.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from django.conf import settings
from django.db import connection
from django.utils import timezone

from sessions_app.hosts.heartbeats import host_name
from sessions_app.maintenance.chore_run import ChoreRun
from sessions_app.models import DataSize

DIRECTORIES: Final[Mapping[str, tuple[str, ...]]] = {
    "journals": ("agentctl",),
    "worktrees": ("worktrees",),
    "trash": ("trash",),
    "workspaces": ("workspaces",),
    "archives": ("archives", "repositories"),
    "homes": ("agent_homes",),
    "records": ("sessions",),
}
"""The directories in the data directory that each kind of data is in."""
DATABASE: Final = "database"
SECONDS: Final = 4.0
"""Maximum time to count the files of one kind."""
KEPT_FOR: Final = timedelta(days=7)
"""After this time without a new measurement, a size is forgotten: its host is gone, or measures nothing any more."""
_DATABASE_FILES: Final = ("", "-wal", "-shm")
_DU_LINE: Final = re.compile(r"(\d+)\t")
_VANISHED: Final = "No such file or directory"


def measure_sizes(work: ChoreRun) -> None:
    """Measure every kind of data of this host, and store the sizes for the pages and the metrics."""
    if work.dry_run:
        return
    sizes = {what: measure_directories(names) for what, names in DIRECTORIES.items()}
    host = host_name()
    for what, size in sizes.items():
        _store(host, what, size)
        if size is None:
            work.note(f"the size of {what} is unknown: its files could not be counted within {SECONDS:g} seconds")
    _store(_database_host(host), DATABASE, measure_database())
    DataSize.objects.filter(measured_at__lt=timezone.now() - KEPT_FOR).delete()


def _store(host: str, what: str, size: int | None) -> None:
    values = {"bytes": size, "measured_at": timezone.now()}
    DataSize.objects.update_or_create(host=host, what=what, defaults=values)


def measure_directories(names: tuple[str, ...]) -> int | None:
    """Return the bytes that directories of the data directory occupy on the disk; None: unknown.

    A directory that is not there occupies nothing.
    """
    present = [path for path in (Path(settings.KANDEV_DATA_DIR) / name for name in names) if os.path.lexists(path)]
    if not present:
        return 0
    # du follows no link and stays on its file system, and needs little memory however deep the directories are.
    command = ["du", "--summarize", "--one-file-system", "--block-size=1", "--", *map(str, present)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
            env={"LC_ALL": "C"},  # without PATH, du is one of the system's
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = [int(match[1]) for line in done.stdout.splitlines() if (match := _DU_LINE.match(line))]
    # Files may vanish while they are counted; one that may not be read makes the sum wrong.
    hidden = [line for line in done.stderr.splitlines() if not line.endswith(_VANISHED)]
    if hidden or len(found) != len(present):
        return None
    return sum(found)


def measure_database() -> int | None:
    """Return the size of the database in bytes; None: unknown."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_database_size(current_database())")
            return int(cursor.fetchone()[0])
    name = str(connection.settings_dict["NAME"])
    sizes = [_file_size(Path(f"{name}{ending}")) for ending in _DATABASE_FILES]
    if sizes[0] is None:
        return None
    return sum(filter(None, sizes))


def _file_size(path: Path) -> int | None:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return None


def _database_host(host: str) -> str:
    """Return the host that an embedded database is on; empty for a server, which all hosts share."""
    if connection.vendor == "postgresql":
        return ""
    return host
