"""Settings and fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import Model
from django.test import TransactionTestCase
from whitenoise.middleware import WhiteNoiseMiddleware

from executors_app import plugins
from sessions_app.worker.schedules import ensure_schedules
from tests.databases import database_named
from tests.migrated_database import copy_migrated
from tests.pages.kept_browser import KEPT
from tests.supervisor.recording_runtime import RecordingRuntime
from tests.transaction_guard import TransactionGuard, of_the_test

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Show values in failed assertions of shared test bodies, as pytest does for test modules.
pytest.register_assert_rewrite(
    "tests.drills.restart_drills", "tests.executors.contract", "tests.executors.shared_worktrees"
)

# The duration of an example depends on the load of the machine.
hypothesis.settings.register_profile("kandev", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("kandev")

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "screenshots"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--screenshots``, with which ``pytest -m browser`` renews the pictures in the documents."""
    parser.addoption("--screenshots", action="store_true", help="write docs/screenshots/*.png")


@pytest.fixture
def picture(request: pytest.FixtureRequest) -> Callable[[Page, str], None]:
    """Return a function that saves a screenshot of a page for the documents if ``--screenshots`` was given."""
    wanted = request.config.getoption("--screenshots", default=False)

    def take(page: Page, name: str) -> None:
        if wanted:
            PICTURES.mkdir(exist_ok=True)
            page.evaluate("() => document.querySelectorAll('.worktree').forEach(element => element.hidden = true)")
            screen = page.viewport_size or {"width": 1280, "height": 720}
            height = page.evaluate("document.documentElement.scrollHeight")
            page.set_viewport_size({**screen, "height": height})
            page.screenshot(path=PICTURES / f"{name}.png")
            page.set_viewport_size(screen)

    return take


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """After a module's fixtures have ended, close the browser that no next test uses."""
    try:
        return (yield)
    finally:
        KEPT.close_after(item, nextitem)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix: None) -> None:
    """Allow tests longer transactions on a busy machine than requests and the supervisor may hold."""
    if connection.vendor == "postgresql":
        connection.settings_dict["OPTIONS"]["options"] += " -c idle_in_transaction_session_timeout=120000"


@pytest.fixture(scope="session")
def django_db_keepdb(django_db_modify_db_settings: None) -> bool:
    """Copy the migrated database of this test run and let Django use it: migrating takes ten seconds of CPU time."""
    creation: Any = connection.creation
    copy_migrated(database_named(creation._get_test_db_name()))
    return True


@pytest.fixture(scope="module")
def shared_rows(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Keep what a module's fixtures write for all its tests, each of which still rolls back its own changes.

    The transaction of a test with the fixture ``db`` is nested in this one: no test may commit.
    """
    with django_db_blocker.unblock(), of_the_test():
        yield
        transaction.set_rollback(True)


@pytest.fixture(scope="session")
def transaction_guard() -> Iterator[TransactionGuard]:
    """Let all costly work of this process be checked."""
    with TransactionGuard().installed() as guard:
        yield guard


@pytest.fixture(autouse=True)
def no_costly_work_in_transactions(transaction_guard: TransactionGuard) -> Iterator[None]:
    """Fail a test in which work whose cost others choose began inside a transaction."""
    transaction_guard.found.clear()
    yield
    assert transaction_guard.found == []


@pytest.fixture(scope="session", autouse=True)
def _find_static_files_once() -> Iterator[None]:
    """Share the static files that the first test client found: a search takes longer than most requests."""
    find, found = WhiteNoiseMiddleware.add_files_from_finders, dict[str, Any]()

    def add_files_from_finders(middleware: WhiteNoiseMiddleware) -> None:
        if not found:
            find(middleware)
            found.update(middleware.files)
        middleware.files = dict(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WhiteNoiseMiddleware, "add_files_from_finders", add_files_from_finders)
        yield


@pytest.fixture(scope="session", autouse=True)
def _keep_rows_of_migrations() -> Iterator[None]:
    """After a test with real transactions, restore the rows that migrations create in every database.

    Django would recreate content types and permissions, which takes longer than most of these tests.
    """
    kept: dict[type[Model], list[Model]] = {}

    def _fixture_teardown(test_case: TransactionTestCase) -> None:
        if not kept:
            call_command("flush", verbosity=0, interactive=False)
            kept.update({model: list(model._default_manager.all()) for model in (ContentType, Permission)})
            return
        if connection.vendor == "postgresql":
            _delete_rows()
        else:
            call_command("flush", verbosity=0, interactive=False, reset_sequences=False, inhibit_post_migrate=True)
        for model, rows in kept.items():
            model._default_manager.bulk_create(rows)
        ContentType.objects.clear_cache()
        ensure_schedules()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", _fixture_teardown)
        yield


def _delete_rows() -> None:
    """Empty the tables that have rows, in a twentieth of the time in which TRUNCATE replaces the files of every table.

    As with TRUNCATE, threads that a test left end their transactions first, and no trigger or foreign key is consulted.
    """
    tables = [
        connection.ops.quote_name(name)
        for name in connection.introspection.django_table_names(only_existing=True, include_views=False)
    ]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
        cursor.execute("SET LOCAL session_replication_role = replica")
        filled = [f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {name})" for name in tables]  # noqa: S608 - our tables
        cursor.execute(" UNION ALL ".join(filled))
        for (name,) in cursor.fetchall():
            cursor.execute(f"DELETE FROM {name}")  # noqa: S608 - one of them


@pytest.fixture(autouse=True)
def default_umask() -> Iterator[None]:
    """Restore the default umask: importing or calling ``private_files`` makes this process's new files private."""
    os.umask(0o022)
    yield
    os.umask(0o022)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> RecordingRuntime:
    """Install the runtime ``recording`` and return it."""
    made = RecordingRuntime()
    known = {**plugins.runtimes(), made.name: made}
    monkeypatch.setattr(plugins, "runtimes", lambda: known)
    return made
