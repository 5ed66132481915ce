"""A stored sweep of sessions, beside JupyterHub's check of as many servers at its start."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.bench.composite import sweep_and_store
from tests.bench.figures import Figure, seconds_of
from tests.bench.peers.programs import command, run_until_report
from tests.bench.world import World, fleet_of
from tests.support.fake_agentctl import FakeAgentctl

PROGRAM: Final = Path(__file__).with_name("jupyterhub_program.py")
LIMIT: Final = 0.25


def of_checks(world: World, count: int, rounds: int, *, limited: bool) -> list[Figure]:
    """Measure the best of alternating rounds; each system's servers listen as usual for it."""
    home = world.home / "jupyterhub"
    home.mkdir()
    with fleet_of(count, "127.11.0.1") as fleet, fleet_of(count, "127.12.0.1", at_sockets=False) as servers:
        world.fill(fleet)
        _seed(home, servers)
        ours, theirs = asyncio.run(_in_turn(home, count, rounds))
    beside = f"JupyterHub {theirs['version']}, SQLite, local processes"
    return [Figure(f"sweep of {count:,}, kept", ours, beside, theirs["seconds"], limit=LIMIT if limited else None)]


async def _in_turn(home: Path, count: int, rounds: int) -> tuple[float, dict[str, Any]]:
    registry, ours, theirs = ExecutionRegistry(), [], []
    try:
        for _ in range(rounds):
            ours.append(await seconds_of(lambda: sweep_and_store(registry, count)))
            theirs.append(await asyncio.to_thread(_check, home, count))
    finally:
        await registry.close()
    return min(ours), min(theirs, key=lambda one: float(one["seconds"]))


def _seed(home: Path, servers: Sequence[FakeAgentctl]) -> None:
    addresses = [(urlsplit(one.url).hostname, urlsplit(one.url).port) for one in servers]
    document = json.dumps({"pid": servers[0].process["pid"], "servers": addresses})
    argv = command(PROGRAM, "seed", f"sqlite:///{home / 'seed.sqlite'}")
    subprocess.run(argv, cwd=home, input=document, capture_output=True, text=True, check=True)


def _check(home: Path, count: int) -> dict[str, Any]:
    """Start a hub with a copy of the database, and kill it after it has checked its servers; return its report."""
    database = home / "hub.sqlite"
    shutil.copy(home / "seed.sqlite", database)
    report = run_until_report(home, PROGRAM, "check", f"sqlite:///{database}")
    assert report["running"] == count, f"{report['running']} of {count} servers were found running"
    return report
