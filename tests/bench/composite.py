"""A whole sweep, stored as by ``recover_sessions``, beside the least it has to do and beside a slow implementation.

The floor for each execution: read its row, get and parse two responses, write its row, write one event. The slow way
stands in for a system that cannot run here: the same work with Django's own ``bulk_update`` and a general HTTP client.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence

import aiohttp
from django.utils import timezone

from executors_app.machine.listeners import AgentctlListener, LocalConnector, connector_url
from executors_app.models import ExecutorRunning
from sessions_app.recovery.sweep import sweep_pass
from sessions_app.recovery.sweep.sweep_pass import SweepScope, run_sweep
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.bench.bare import BareGets
from tests.bench.figures import Figure, in_turn
from tests.bench.world import World, fleet_of
from tests.support.fake_agentctl import FakeAgentctl, fake_status

FLOOR_LIMIT = 3.5
"""The aim is 2; docs/performance.md explains why it is missed."""
SLOW_WAY_LIMIT = 0.6
TABLES = """
CREATE TABLE rows (id TEXT PRIMARY KEY, session TEXT, url TEXT, token TEXT, seen REAL);
CREATE TABLE events (session TEXT, seq INTEGER, name TEXT, payload TEXT, at REAL);
"""
UPDATE = "UPDATE rows SET seen = j.value FROM json_each(?) AS j WHERE rows.id = j.key"
AT_ONCE = 100


def of_the_living(world: World, count: int, rounds: int, *, limited: bool) -> list[Figure]:
    """Measure a sweep of a fleet that answers: nothing is lost, and only the report is written."""
    with fleet_of(count, "127.5.0.1") as fleet:
        world.fill(fleet)
        seconds, floor, slow = asyncio.run(_beside(world, fleet, rounds))
    row = f"sweep of {count:,}, kept"
    return [
        Figure(row, seconds, "load, 2 GETs, UPDATE, event each", floor, limit=FLOOR_LIMIT if limited else None),
        Figure(row, seconds, "aiohttp + bulk_update", slow, limit=SLOW_WAY_LIMIT if limited else None),
    ]


async def _beside(world: World, fleet: Sequence[FakeAgentctl], rounds: int) -> list[float]:
    registry, bare = ExecutionRegistry(), BareSweep(world, fleet)

    async def swept() -> None:
        await sweep_and_store(registry, len(fleet))

    async def slowly() -> None:
        rows = await registry.database(lambda: list(ExecutorRunning.objects.select_related("session")))
        async with aiohttp.ClientSession(connector=LocalConnector(limit=AT_ONCE)) as http:
            await asyncio.gather(*(_get(http, row) for row in rows))
        await registry.database(lambda: ExecutorRunning.objects.bulk_update(rows, ["last_seen_at"], batch_size=500))

    try:
        return list(map(min, await in_turn(rounds, swept, bare, slowly)))
    finally:
        bare.close()
        await registry.close()


async def sweep_and_store(registry: ExecutionRegistry, count: int) -> None:
    """Check all ``count`` executions and store the report, as ``recover_sessions --dry-run`` does."""
    result = await run_sweep(registry, SweepScope("command", dry_run=True), set())
    assert len(result.decided) == count
    await registry.database(lambda: sweep_pass.store_sweep(sweep_pass.build_report(result, registry.boot_id), result))


async def _get(http: aiohttp.ClientSession, row: ExecutorRunning) -> None:
    headers = {"Authorization": f"Bearer {row.auth_token}"}
    async with http.get(f"{connector_url(AgentctlListener(row.agentctl_url, None))}/status", headers=headers) as answer:
        assert (await answer.json())["execution_id"] == str(row.id)
    row.last_seen_at = timezone.now()


class BareSweep:
    """The floor of a sweep."""

    def __init__(self, world: World, fleet: Sequence[FakeAgentctl]):
        path = world.home / f"composite-{len(fleet)}.sqlite3"
        self._gets = BareGets(fleet)
        self._answer = json.dumps(fake_status(fleet[0])).encode()
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" + TABLES)
        rows = [(one.execution_id, one.session_id, one.url, one.token) for one in fleet]
        self._connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, 0)", rows)

    def __call__(self) -> None:
        """Run one bare sweep."""
        rows = self._connection.execute("SELECT id, session, url, token FROM rows").fetchall()
        self._gets()
        self._gets()
        for _ in range(2 * len(rows)):
            json.loads(self._answer)
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute(UPDATE, [json.dumps({row[0]: 1.0 for row in rows})])
        events = [(row[1], 1, "session.receipt", "{}", 1.0) for row in rows]
        self._connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", events)
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()
