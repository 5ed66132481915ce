"""A pytest plugin: ``--tier=main``, used by ``make test``, skips slow tests whose behaviour other tests also cover.

``make test-all`` runs everything, as does pytest with paths alone: the default tier is ``all``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

MAIN_DRILLS: Final = ("test_restart_drills.py", "test_sweeps.py")
"""Drills A to D on the local runtime, and the guarantees of recovery sweeps."""
MAIN_CONTAINERS: Final = (
    *("test_docker_drills.py", "test_confinement.py", "test_docker_config.py", "test_remote_engine_config.py"),
)
"""Drills A to D in containers of one engine, and the sandbox's isolation."""
MAIN_BROWSER: Final = (
    "tests/pages/test_browser.py",
    "tests/pages/test_browser_drills.py",
    "tests/admin/test_browser.py",
)
"""The main path of a user: a session from start to end, including killed processes."""
ONLY_IN_ALL: Final = (
    *("tests/bench/", "tests/chaos/", "tests/deploy/", "tests/fuzz/", "tests/hostile_agent/"),
    *(
        "tests/kubernetes/standin/",
        "tests/kubernetes/test_cluster",
        "tests/real_agents/",
        "tests/remote/",
        "tests/soak/",
        "tests/sprites/",
        "tests/three_hosts/",
    ),
)
"""Areas that need external engines, hosts, agents or tools, and long random runs."""
MAIN_ON_POSTGRESQL: Final = (
    *("tests/kernel/", "tests/turns/test_models", "tests/drills/test_several_supervisors.py"),
    *("tests/supervisor/test_leases", "tests/stream/test_ingest", "tests/supervisor/test_database"),
    *("tests/house/test_incompatible_database", "tests/upgrades/", "tests/waits/test_interrupted_waits"),
)
"""Locks, leases, appends, ingest, migrations and wake-ups: where PostgreSQL differs from SQLite."""


def is_main(nodeid: str, markers: set[str], database: str) -> bool:
    """Return whether ``make test`` runs a test.

    ``nodeid`` is pytest's, ``markers`` are the names of the test's markers, ``database`` is *sqlite* or *postgresql*.
    """
    file = nodeid.partition("::")[0]
    name = file.rpartition("/")[2]
    if file.startswith(ONLY_IN_ALL) or "real_agent" in markers:
        return False
    if database == "postgresql":
        return "postgresql" in markers or file.startswith(MAIN_ON_POSTGRESQL)
    if file.startswith("tests/docker/"):
        return name in MAIN_CONTAINERS
    if file.startswith("tests/drills/"):
        return name in MAIN_DRILLS
    return "browser" not in markers or file in MAIN_BROWSER


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--tier``."""
    parser.addoption(
        "--tier", choices=("main", "all"), default="all", help="main: the tests of make test; all: everything"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip importing files without tests of ``make test``: importing takes most of the time of a collection."""
    if config.option.tier == "all" or collection_path.suffix != ".py":
        return None
    markers = {"postgresql"} if "mark.postgresql" in collection_path.read_text() else set[str]()
    file = collection_path.relative_to(config.rootpath).as_posix()
    return None if is_main(file, markers, config.option.database) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that only ``make test-all`` runs."""
    if config.option.tier == "all":
        return
    database = config.option.database
    selected = [item for item in items if is_main(item.nodeid, {mark.name for mark in item.iter_markers()}, database)]
    kept = set(selected)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = selected
