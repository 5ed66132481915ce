"""A pytest plugin, loaded before Django's settings: give the test run its own data directory and database.

Removes every ``KANDEV_`` variable of the caller's shell except ``KANDEV_REQUIRE_SERVICES``.
``--database=postgresql`` starts a temporary PostgreSQL server and runs only the tests that use a database.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from typing import Final

import pytest

from tests import network

REQUIRE_SERVICES = "KANDEV_REQUIRE_SERVICES"
DATABASE_URL = "KANDEV_DATABASE_URL"
RUN_DIRECTORY: Final = "TEST_RUN_DIRECTORY"
"""Environment variable with a directory that all processes of one test run share."""
OWN_NETWORK: Final = "TEST_OWN_NETWORK"
"""Environment variable of an xdist worker that has its own network, and of all processes that it starts."""
DATABASE_FIXTURES: Final = frozenset({"db", "transactional_db", "deployment", "shared"})
"""Tests with one of these fixtures use a database; other tests declare it with the marker ``database``."""
SQLITE_ONLY_MARKERS: Final = frozenset({"any_database", "embedded", "browser", "docker", "real_agent"})
"""Markers of tests that are about SQLite itself, or that do the same on every database (see CONTRIBUTING.md)."""


def _isolate() -> None:
    for name in [name for name in os.environ if name.startswith("KANDEV_") and name != REQUIRE_SERVICES]:
        del os.environ[name]
    directory = tempfile.mkdtemp(prefix="kandev-tests-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    os.environ["KANDEV_DATA_DIR"] = directory
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ[RUN_DIRECTORY] = directory
    # xdist workers do not inherit ``-p``. Each of them gets its own directory and database.
    os.environ["PYTEST_PLUGINS"] = "tests.environment,tests.xdist_scheduler,tests.tiers"
    # A shell starts background jobs with these signals ignored, and all processes of the tests would inherit that.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    os.environ["DJANGO_SETTINGS_MODULE"] = "kandev.settings"
    sys.dont_write_bytecode = (
        False  # else each worker of each run compiles every test, whatever the caller's shell says
    )
    if "PYTEST_XDIST_WORKER" in os.environ and OWN_NETWORK not in os.environ:
        os.environ[OWN_NETWORK] = "1"  # a process with another network could not reach the ports of the worker
        network.leave()


_isolate()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--database``."""
    parser.addoption("--database", choices=("sqlite", "postgresql"), default="sqlite", help="database of the tests")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    """Start the database before Django reads its settings."""
    if early_config.known_args_namespace.database == "postgresql":
        from tests import postgresql  # noqa: PLC0415 - not needed on SQLite

        if postgresql.binaries() is not None:
            os.environ[DATABASE_URL] = postgresql.server().url("kandev")
    return (yield)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Without PostgreSQL, end the run with a reason: as skipped, or as failed if services are required (CI)."""
    if session.config.option.database == "postgresql" and DATABASE_URL not in os.environ:
        is_required = os.environ.get(REQUIRE_SERVICES) == "1"
        outcome = "PostgreSQL is required" if is_required else "skipped"
        pytest.exit(f"{outcome}: no PostgreSQL server is installed", returncode=int(is_required))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests for another database; on PostgreSQL also those that use none, or do the same on both."""
    is_selected = _uses_database if config.option.database == "postgresql" else _runs_on_sqlite
    selected = [item for item in items if is_selected(item)]
    kept = set(selected)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = selected


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, and never examine those tests in search of garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _runs_on_sqlite(item: pytest.Item) -> bool:
    return item.get_closest_marker("postgresql") is None


def _uses_database(item: pytest.Item) -> bool:
    markers = {mark.name for mark in item.iter_markers()}
    if markers & SQLITE_ONLY_MARKERS:
        return False
    return bool(
        markers & {"django_db", "database", "postgresql"}
        or DATABASE_FIXTURES.intersection(getattr(item, "fixturenames", ()))
    )
