"""``/healthz`` and ``/readyz`` name what is missing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import DatabaseError
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.utils import timezone

from sessions_app.models import Supervisor
from sessions_app.pages.views import health


def test_healthz_needs_no_database() -> None:
    answer = Client().get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def supervisor_beat(age: float, *, swept: bool) -> Callable[[], None]:
    def make() -> None:
        at = timezone.now() - timedelta(seconds=age)
        Supervisor.objects.create(
            boot_id=f"{age}", host_id="h", started_at=at, beat_at=at, swept_at=at if swept else None
        )

    return make


def no_supervisor() -> None:
    """Leave the deployment without a supervisor."""


def dead_supervisor_swept() -> None:
    supervisor_beat(settings.KANDEV_LEASE_TTL + 5, swept=True)()
    supervisor_beat(0, swept=False)()


def missing_migration() -> None:
    supervisor_beat(0, swept=True)()
    MigrationRecorder.Migration.objects.filter(app="sessions_app").latest("id").delete()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (supervisor_beat(0, swept=True), []),
        (no_supervisor, ["supervisor", "sweep"]),
        (supervisor_beat(0, swept=False), ["sweep"]),
        (supervisor_beat(settings.KANDEV_LEASE_TTL + 5, swept=True), ["supervisor", "sweep"]),
        (dead_supervisor_swept, ["sweep"]),
        (missing_migration, ["migrations"]),
    ],
    ids=[
        "healthy",
        "no supervisor",
        "not swept yet",
        "heartbeat too old",
        "the supervisor that swept is dead",
        "migration missing",
    ],
)
def test_readyz_names_what_is_missing(given: Callable[[], None], missing: list[str]) -> None:
    given()
    answer = Client().get("/readyz")
    if missing:
        assert answer.json() == {"status": "not ready", "missing": missing}
    else:
        assert answer.json() == {"status": "ready", "missing": [], "down": []}
    assert answer.status_code == (503 if missing else 200)


@pytest.mark.django_db
def test_readiness_check_does_not_rebuild_the_migration_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor_beat(0, swept=True)()
    assert Client().get("/readyz").status_code == 200

    def build(*args: Any) -> None:
        raise AssertionError("the graph was computed again")

    monkeypatch.setattr(MigrationLoader, "build_graph", build)
    assert Client().get("/readyz").status_code == 200


@pytest.mark.django_db
def test_unreachable_database_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(*args: Any) -> bool:
        raise DatabaseError("gone")

    monkeypatch.setattr(health, "_has_unapplied_migrations", no_answer)
    answer = Client().get("/readyz")
    assert (answer.status_code, answer.json()["missing"]) == (503, ["database"])


@pytest.mark.django_db
def test_process_that_was_ready_once_stays_so_for_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_was_ready", threading.Event())
    web = Client()
    assert web.get("/readyz?once").status_code == 503
    supervisor_beat(0, swept=True)()
    assert web.get("/readyz").json()["status"] == "ready"
    Supervisor.objects.all().delete()
    assert web.get("/readyz").status_code == 503
    answer = web.get("/readyz?once")
    assert (answer.status_code, answer.json()) == (200, {"status": "was ready"})
