"""Recovery of 1,000 sessions after a kill, beside the recovery of as many DBOS workflows, both on PostgreSQL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from tests import postgresql
from tests.bench.figures import Figure
from tests.bench.peers.programs import run_until_report
from tests.bench.restarts import fleet_to_attach
from tests.bench.world import World
from tests.environment import DATABASE_URL

PROGRAM: Final = Path(__file__).with_name("dbos_program.py")
LIMIT: Final = 1.0


def of_recoveries(world: World, count: int, rounds: int, *, limited: bool) -> list[Figure]:
    """Measure the best of alternating rounds; the database of this process is PostgreSQL."""
    ours, theirs = [], []
    with fleet_to_attach(world, count) as attach:
        for _ in range(rounds):
            ours.append(attach()[0])
            theirs.append(_recovery(world.home, count))
    best = min(theirs, key=lambda one: float(one["seconds"]))
    beside = f"DBOS {best['version']}, {count:,} workflows"
    row = f"restart, {count:,} attached again, postgresql"
    return [Figure(row, min(ours), beside, best["seconds"], limit=LIMIT if limited else None)]


def _recovery(home: Path, count: int) -> dict[str, Any]:
    """Kill an application while all of its workflows wait, restart it, and return its report."""
    database = postgresql.new_database(os.environ[DATABASE_URL]).replace("postgres://", "postgresql+psycopg://", 1)
    run_until_report(home, PROGRAM, "start", database, str(count))
    return run_until_report(home, PROGRAM, "recover", database, str(count))
