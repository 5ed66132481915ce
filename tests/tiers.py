"""A pytest plugin: ``--tier=main`` leaves out what takes long and is proven once more elsewhere, for ``make test``.

``make test-all`` runs everything. A path given on the command line runs whole, as no tier is named then.
"""

from __future__ import annotations

from typing import Final

import pytest

MAIN_DRILLS: Final = ("test_restart_drills.py", "test_sweeps.py")
"""Drills A to D on the local runtime, and what sweeps promise."""
MAIN_CONTAINERS: Final = (
    *("test_docker_drills.py", "test_confinement.py", "test_docker_config.py", "test_remote_engine_config.py"),
)
"""Drills A to D in containers of one engine, and the sandbox."""
MAIN_BROWSER: Final = ("test_browser.py", "test_browser_drills.py")
"""A person's main path: a session from its start over kills to its end."""
ONLY_IN_ALL: Final = (
    *("tests/bench/", "tests/chaos/", "tests/deploy/", "tests/fuzz/", "tests/hostile_agent/", "tests/real_agents/"),
    *("tests/remote/", "tests/soak/", "tests/sprites/"),
)
"""Areas of engines, hosts, agents and tools that are not ours, and of long walks."""
MAIN_ON_POSTGRESQL: Final = (
    *("tests/models/", "tests/drills/test_several_supervisors.py"),
    *("tests/supervisor/test_leases", "tests/supervisor/test_ingest", "tests/supervisor/test_database"),
    *("tests/house/test_migrations", "tests/house/test_upgrade", "tests/waits/test_interrupted_waits"),
)
"""Locks, leases, appends, ingest, migrations and wake-ups: what PostgreSQL does otherwise than SQLite."""


def is_main(nodeid: str, markers: set[str], database: str) -> bool:
    """Return whether ``make test`` runs a test.

    ``nodeid`` is pytest's, ``markers`` are the names of the test's markers, ``database`` is *sqlite* or *postgresql*.
    """
    file = nodeid.partition("::")[0]
    name = file.rpartition("/")[2]
    if database == "postgresql":
        return "postgresql" in markers or file.startswith(MAIN_ON_POSTGRESQL)
    if file.startswith(ONLY_IN_ALL) or "real_agent" in markers:
        return False
    if file.startswith("tests/docker/"):
        return name in MAIN_CONTAINERS
    if file.startswith("tests/drills/"):
        return name in MAIN_DRILLS
    return "browser" not in markers or name in MAIN_BROWSER


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--tier``."""
    parser.addoption(
        "--tier", choices=("main", "all"), default="all", help="main: what make test runs; all: everything"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what belongs to ``make test-all`` alone."""
    if config.option.tier == "all":
        return
    database = config.option.database
    kept = [item for item in items if is_main(item.nodeid, {mark.name for mark in item.iter_markers()}, database)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept
