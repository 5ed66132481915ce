"""A pytest plugin, loaded before Django's settings: tests have a data directory and a database of their own.

Nothing that the caller's shell says about Kandev reaches them but ``KANDEV_REQUIRE_SERVICES``.
``--database=postgresql`` runs every test that touches a database, and no other, on a PostgreSQL of their own.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from typing import Final

import pytest

from tests import network

REQUIRE_SERVICES = "KANDEV_REQUIRE_SERVICES"
DATABASE_URL = "KANDEV_DATABASE_URL"
FIXTURES: Final = frozenset({"db", "transactional_db", "deployment", "shared"})
"""Whoever uses one of these touches a database; others say so with the marker ``database``."""
ELSEWHERE: Final = frozenset({"any_database", "embedded", "browser", "docker", "real_agent"})
"""Markers of what is about SQLite itself, or slow and the same on every database."""


def _isolate() -> None:
    for name in [name for name in os.environ if name.startswith("KANDEV_") and name != REQUIRE_SERVICES]:
        del os.environ[name]
    directory = tempfile.mkdtemp(prefix="kandev-tests-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    os.environ["KANDEV_DATA_DIR"] = directory
    # Processes that get a share of the tests hear of no ``-p``; each has a directory and a database of its own.
    os.environ["PYTEST_PLUGINS"] = "tests.environment,tests.sharing,tests.tiers"
    # What a shell starts with "&" ignores them, and so would all that the tests start.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    os.environ["DJANGO_SETTINGS_MODULE"] = "kandev.settings"
    if "PYTEST_XDIST_WORKER" in os.environ:
        network.leave()


_isolate()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--database``."""
    parser.addoption("--database", choices=("sqlite", "postgresql"), default="sqlite", help="what the tests run on")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    """Start the database before anybody reads the settings."""
    if early_config.known_args_namespace.database == "postgresql":
        from tests import postgresql  # noqa: PLC0415 - not needed on SQLite

        if postgresql.binaries() is not None:
            os.environ[DATABASE_URL] = postgresql.server().url("kandev")
    return (yield)


def pytest_sessionstart(session: pytest.Session) -> None:
    """A machine without a PostgreSQL skips all of this, with its reason, or fails where CI promised one."""
    if session.config.option.database == "postgresql" and DATABASE_URL not in os.environ:
        is_required = os.environ.get(REQUIRE_SERVICES) == "1"
        outcome = "PostgreSQL is required here" if is_required else "skipped"
        pytest.exit(f"{outcome}: no PostgreSQL server is installed", returncode=int(is_required))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On PostgreSQL: leave out what touches no database, and what is slow and the same on both."""
    is_wanted = _touches_database if config.option.database == "postgresql" else _runs_on_sqlite
    wanted = [item for item in items if is_wanted(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(wanted)])
    items[:] = wanted


def _runs_on_sqlite(item: pytest.Item) -> bool:
    return item.get_closest_marker("postgresql") is None


def _touches_database(item: pytest.Item) -> bool:
    marks = {mark.name for mark in item.iter_markers()}
    if marks & ELSEWHERE:
        return False
    return bool(
        marks & {"django_db", "database", "postgresql"} or FIXTURES.intersection(getattr(item, "fixturenames", ()))
    )
