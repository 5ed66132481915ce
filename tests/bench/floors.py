"""The floors of this machine beside those of the machine on which the design was measured.

That was a virtual machine with 2 cores, ext4 on a virtio disk, CPython 3.11 and SQLite 3.40.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.bench.bare import BareGets, BareTable, append_durably, appending
from tests.bench.figures import Floor
from tests.bench.world import fleet_of

KNOWN_GET: Final = 112.1
"""Minimum: one GET over epoll, of 1,000 executors, 64 at a time, with a response of about 400 bytes."""
KNOWN_SYNC: Final = 165.2
"""Median: append one line, then fdatasync."""
KNOWN_LINE_OF_100: Final = 2.28
"""Median here: one line of a group commit of 100 lines."""
KNOWN_COMMIT: Final = 301.3
"""One autocommitted insert, WAL, synchronous=FULL: the mean of a quiet disk there, the median here."""
KNOWN_ROW: Final = 1.61
"""Median here: one row of 10,000 in one transaction, WAL, synchronous=FULL."""
LINE: Final = b'{"seq":1,"epoch":"0","ts":1700000000.0,"kind":"message.agent","text":"a few words of an agent"}\n'


def measured(home: Path, samples: int) -> list[Floor]:
    """Return all floors."""
    with fleet_of(min(samples, 100), "127.6.0.1") as fleet:
        gets = BareGets(fleet)
        get = min(_samples(gets, 5)) / len(fleet)
    table = BareTable(home / "floors.sqlite3")
    try:
        with appending(home / "floors") as file:
            one = _samples(lambda: append_durably(file, LINE), samples)
            hundred = _samples(lambda: append_durably(file, LINE * 100), samples)
        commit = _samples(lambda: table.insert(1), samples)
        bulk = _samples(lambda: table.insert(10_000), 3)
    finally:
        table.close()
    return [
        Floor("bare GET /status, each", get, KNOWN_GET),
        Floor("append 1 line + fdatasync", statistics.median(one), KNOWN_SYNC),
        Floor("append 100 lines + fdatasync, each line", statistics.median(hundred) / 100, KNOWN_LINE_OF_100),
        Floor("SQLite commit of 1 row", statistics.median(commit), KNOWN_COMMIT),
        Floor("SQLite commit of 10,000 rows, each row", statistics.median(bulk) / 10_000, KNOWN_ROW),
    ]


def _samples(run: Callable[[], None], count: int) -> list[float]:
    """Return the microseconds of each of ``count`` runs."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        run()
        taken.append((time.perf_counter() - began) * 1e6)
    return taken
