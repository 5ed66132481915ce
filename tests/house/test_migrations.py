"""A database of an earlier release migrates to separate apps and back without losing or moving a row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import ProgrammingError, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import load_backend

from kandev.databases import database_settings
from sessions_app.moved_models import MOVED_MODELS, adopt_old_content_types
from tests import databases
from tests.environment import DATABASE_URL

pytestmark = pytest.mark.database

RELEASE: Final = ("0015_start_rank_with_task", "0004_profile_mode_and_directories")
"""The last migrations of ``sessions_app`` and ``executors_app`` in commit 57684c0, which had one app for everything."""
BEFORE_MOVE: Final = "0023_attention_of_runs"
AFTER_MOVE: Final = "0025_defaults_for_older_code"
TABLES: Final = (
    *("team_roles", "preferences", "login_links", "api_tokens", "notification_settings", "webhooks"),
    *("notification_deliveries", "notification_items", "workflows", "workflow_runs", "workflow_node_runs"),
    *("attention_items", "auth_permission", "auth_group_permissions", "auth_user_user_permissions"),
    *("django_admin_log", "task_sessions", "django_content_type"),
)
NOW: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

Rows = dict[str, list[dict[str, Any]]]


@contextmanager
def connected_to(database: str | Path, directory: Path, blocker: Any) -> Iterator[None]:
    """Connect Django's default connection to another database during the block."""
    url = f"sqlite://{database}" if isinstance(database, Path) else database
    options = connections.configure_settings({"default": database_settings(url, directory, settings.KANDEV_LEASE_TTL)})
    usual = connections["default"]
    connections["default"] = load_backend(options["default"]["ENGINE"]).DatabaseWrapper(options["default"], "default")
    ContentType.objects.clear_cache()
    try:
        with blocker.unblock():
            yield
            connection.close()
    finally:
        connections["default"] = usual
        ContentType.objects.clear_cache()


def empty_database(directory: Path) -> str | Path:
    return databases.new_database().get(DATABASE_URL, directory / "old.sqlite3")


@pytest.fixture(scope="module")
def database_of_release(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> str | Path:
    """Return a database that the earlier release has migrated; tests copy it."""
    directory = tmp_path_factory.mktemp("release")
    made = empty_database(directory)
    with connected_to(made, directory, django_db_blocker):
        migrate_to_release()
    return made


@pytest.fixture
def _empty_database(tmp_path: Path, django_db_blocker: Any) -> Iterator[None]:
    """Connect the default connection to a new, empty database."""
    with connected_to(empty_database(tmp_path), tmp_path, django_db_blocker):
        yield


@pytest.fixture
def _earlier_release(database_of_release: str | Path, tmp_path: Path, django_db_blocker: Any) -> Iterator[None]:
    """Connect the default connection to a copy of a database of the earlier release."""
    copied = empty_database(tmp_path)
    databases.copy(database_of_release, copied)
    with connected_to(copied, tmp_path, django_db_blocker):
        yield


def migrate(*target: str) -> None:
    call_command("migrate", *target, verbosity=0, interactive=False)


def migrate_to_release() -> None:
    migrate("executors_app", RELEASE[1])
    migrate("sessions_app", RELEASE[0])
    for label in ("admin", "authtoken", "contenttypes", "django_q", "sessions"):
        migrate(label)


def models_of_release() -> Any:
    """Return the apps registry of that release."""
    auth = ("auth", "0012_alter_user_first_name_max_length")
    targets = [("sessions_app", RELEASE[0]), ("executors_app", RELEASE[1]), auth]
    return MigrationExecutor(connection).loader.project_state(targets).apps


def read_rows() -> Rows:
    """Return all rows of the tables that the migration may affect, each by column."""
    found: Rows = {}
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"SELECT * FROM {table} ORDER BY 1")  # noqa: S608
            names = [column[0] for column in cursor.description]
            found[table] = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return found


def shared_with(earlier: Rows, rows: Rows) -> Rows:
    """Return ``rows`` with the columns that ``earlier`` has, and without rows that were added since."""
    return {
        table: [
            {name: row[name] for name in before[0]}
            for row in rows[table]
            if "id" not in before[0] or row["id"] in {old["id"] for old in before}
        ]
        for table, before in earlier.items()
    }


def read_storage() -> list[tuple[Any, ...]]:
    """Return what identifies each table and index in the database's files; it changes if a table is recreated."""
    sqlite = "SELECT name, type, rootpage, sql FROM sqlite_master ORDER BY name"
    postgresql = (
        "SELECT relname, oid, relfilenode FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY relname"
    )
    with connection.cursor() as cursor:
        cursor.execute(sqlite if connection.vendor == "sqlite" else postgresql)
        return list(cursor.fetchall())


def fill(apps: Any) -> None:
    """Write a row to every table whose model moves later, with permissions and a line of the admin's history."""

    def create(model: str, /, **values: Any) -> Any:
        return apps.get_model("sessions_app", model).objects.create(**values)

    ada = apps.get_model("auth", "User").objects.create(username="ada", is_staff=True)
    team = apps.get_model("auth", "Group").objects.create(name="Team")
    executor = apps.get_model("executors_app", "Executor").objects.create(name="here", runtime="local_standalone")
    profile = apps.get_model("executors_app", "AgentProfile").objects.create(name="demo", agent_type="demo")
    repository = create("Repository", name="one", team=team, path="/repository")
    task = create("Task", title="task", team=team, repository=repository, created_by=ada)
    session = create("TaskSession", task=task, agent_profile=profile, executor=executor, owner=ada)
    create("TeamRole", user=ada, team=team, role="viewer")
    create("Preferences", user=ada, theme="dark", time_zone="UTC")
    create("LoginLink", user=ada, secret_hash="l" * 64, expires_at=NOW, made_by=ada)
    create("ApiToken", user=ada, name="key", secret_hash="t" * 64, scope="write")
    create("NotificationSettings", user=ada, email=True, kinds=["error"])
    webhook = create("Webhook", team=team, url="https://hook.example/", kinds=["error"], created_by=ada)
    item = create("AttentionItem", key="error:1", kind="error", session=session, task=task, what="It failed")
    delivery = create("Delivery", channel="webhook", webhook=webhook, payload={"a": 1}, state="sent")
    create("DeliveredItem", delivery=delivery, item=item, target=f"webhook:{webhook.pk}")
    workflow = create("Workflow", team=team, name="flow", text="nodes: []", repository=repository, created_by=ada)
    run = create("WorkflowRun", team=team, workflow=workflow, name="flow", text="", task=task, executor=executor)
    create("NodeRun", run=run, position=0, path="a", node="a", kind="shell", session=session)
    permission = Permission.objects.get(codename="operate_unisolated")
    team.permissions.add(permission.pk)
    ada.user_permissions.add(*Permission.objects.filter(codename="view_workflow").values_list("pk", flat=True))
    for model, row in (("workflow", workflow), ("webhook", webhook)):
        kind = ContentType.objects.get(model=model)
        LogEntry.objects.create(user_id=ada.pk, content_type=kind, object_id=row.pk, object_repr=model, action_flag=2)


def labels_by_id() -> dict[int, tuple[str, str]]:
    return {row.pk: (row.app_label, row.model) for row in ContentType.objects.all()}


@pytest.mark.usefixtures("_earlier_release")
def test_database_of_an_earlier_release_migrates_and_back() -> None:
    fill(models_of_release())
    written, old_labels = read_rows(), labels_by_id()
    assert all(written.values()), "every table has a row"

    migrate("executors_app")
    migrate("sessions_app", BEFORE_MOVE)
    stored = read_storage()
    migrate("sessions_app", AFTER_MOVE)
    assert read_storage() == stored, "no table or index was recreated"
    migrate()

    moved = {model: label for label, models in MOVED_MODELS.items() for model in models}
    new_labels = labels_by_id()
    assert {
        pk: (moved.get(model, label) if label == "sessions_app" else label, model)
        for pk, (label, model) in old_labels.items()
    }.items() <= new_labels.items()
    assert not {("sessions_app", model) for model in moved} & set(new_labels.values())
    relabelled = [row | {"app_label": new_labels[row["id"]][0]} for row in written["django_content_type"]]
    assert shared_with(written, read_rows()) == written | {"django_content_type": relabelled}

    ada, team = User.objects.get(username="ada"), Group.objects.get(name="Team")
    assert ada.has_perm("workflows.view_workflow")
    assert not ada.has_perm("sessions_app.view_workflow")
    given = team.permissions.get(content_type__app_label="accounts")
    assert given.codename == "operate_unisolated"
    urls = sorted(str(entry.get_admin_url()).split("/")[2] for entry in LogEntry.objects.all())
    assert urls == ["notifications", "workflows"]

    migrate("sessions_app", RELEASE[0])
    assert shared_with(written, read_rows()) == written
    assert old_labels.items() <= labels_by_id().items()
    migrate()
    assert shared_with(written, read_rows()) == written | {"django_content_type": relabelled}


@pytest.fixture
def _fresh_content_types(db: None) -> Iterator[None]:
    """Forget content types that this process has cached, before and after a test that changes them."""
    ContentType.objects.clear_cache()
    yield
    ContentType.objects.clear_cache()


@pytest.mark.usefixtures("_fresh_content_types")
def test_content_types_recreated_by_old_code_are_merged() -> None:
    ada, team = User.objects.create(username="ada"), Group.objects.create(name="Team")
    kept = ContentType.objects.get(app_label="accounts", model="teamrole")
    # An old web process writes a log entry, and an old `migrate` recreates the permissions.
    again = ContentType.objects.create(app_label="sessions_app", model="teamrole")
    known = Permission.objects.create(content_type=again, codename="operate_unisolated", name="again")
    unknown = Permission.objects.create(content_type=again, codename="of_old_code", name="old")
    team.permissions.add(known, unknown)
    ada.user_permissions.add(known)
    entry = LogEntry.objects.create(user=ada, content_type=again, object_id="1", object_repr="role", action_flag=2)

    migrate()

    assert not ContentType.objects.filter(app_label="sessions_app", model="teamrole").exists()
    assert LogEntry.objects.get(pk=entry.pk).content_type_id == kept.pk
    assert {(row.content_type_id, row.codename) for row in team.permissions.all()} == {
        (kept.pk, "operate_unisolated"),
        (kept.pk, "of_old_code"),
    }
    assert {row.content_type_id for row in ada.user_permissions.all()} == {kept.pk}
    assert Permission.objects.filter(codename="operate_unisolated").count() == 1
    adopt_old_content_types()  # nothing is left to do


@pytest.mark.usefixtures("_fresh_content_types")
def test_old_content_type_without_a_new_one_is_renamed_after_a_migration() -> None:
    ContentType.objects.filter(app_label="workflows", model="workflow").delete()
    old = ContentType.objects.create(app_label="sessions_app", model="workflow")
    adopt_old_content_types()
    assert labels_by_id()[old.pk] == ("workflows", "workflow")


@pytest.mark.usefixtures("_earlier_release")
def test_models_of_the_earlier_release_read_and_change_migrated_rows() -> None:
    old = models_of_release()
    fill(old)
    migrate()

    def rows_of(name: str) -> Any:
        return old.get_model("sessions_app", name).objects

    run = rows_of("WorkflowRun").select_related("workflow__team").get()
    assert (run.workflow.name, run.workflow.team.name, run.node_runs.get().path) == ("flow", "Team", "a")
    assert rows_of("WorkflowRun").filter(pk=run.pk).update(state="running") == 1
    assert rows_of("DeliveredItem").select_related("item", "delivery__webhook").get().item.what == "It failed"
    assert rows_of("ApiToken").filter(user__username="ada", scope="write").count() == 1
    link = rows_of("LoginLink").create(user_id=run.workflow.created_by_id, secret_hash="n" * 64, expires_at=NOW)
    assert rows_of("LoginLink").filter(pk=link.pk, expires_at__lt=NOW + timedelta(1)).delete()[0] == 1
    rows_of("Delivery").create(channel="email", user_id=run.workflow.created_by_id, payload={})
    rows_of("NodeRun").create(run=run, position=1, path="b", node="b", kind="shell")


@pytest.mark.postgresql
@pytest.mark.usefixtures("_earlier_release")
def test_models_of_the_earlier_release_insert_rows_without_newer_columns() -> None:
    old = models_of_release()
    migrate()
    fill(old)
    assert old.get_model("sessions_app", "Workflow").objects.get().name == "flow"


class ReleasesLock(StringIO):
    """An output that ends the transaction of ``other`` as soon as something is written."""

    def __init__(self, other: BaseDatabaseWrapper):
        super().__init__()
        self.other = other

    def write(self, text: str) -> int:
        self.other.close()
        return super().write(text)


@pytest.mark.postgresql
@pytest.mark.usefixtures("_empty_database")
def test_migration_that_lost_a_lock_is_retried() -> None:
    migrate("contenttypes", "0001")
    other = connection.copy()
    other.set_autocommit(False)
    with connection.cursor() as mine, other.cursor() as theirs:
        mine.execute("SET lock_timeout = '100ms'")
        theirs.execute("SELECT * FROM django_content_type")
    said = ReleasesLock(other)
    call_command("migrate", "contenttypes", verbosity=0, interactive=False, stderr=said)
    assert "lost a deadlock with a running process; retrying" in said.getvalue()
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM django_migrations WHERE app = 'contenttypes'")
        assert len(cursor.fetchall()) == 2


@pytest.mark.postgresql
@pytest.mark.usefixtures("_empty_database")
def test_migration_that_fails_otherwise_is_not_retried() -> None:
    migrate("contenttypes", "0001")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_content_type DROP COLUMN name")
    said = StringIO()
    with pytest.raises(ProgrammingError):
        call_command("migrate", "contenttypes", verbosity=0, interactive=False, stderr=said)
    assert said.getvalue() == ""
