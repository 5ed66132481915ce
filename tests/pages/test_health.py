"""``/healthz`` and ``/readyz`` name what is missing."""

from __future__ import annotations

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
from sessions_app.pages import health


def test_healthz_needs_no_database() -> None:
    answer = Client().get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def beat(age: float, *, swept: bool) -> Callable[[], None]:
    def make() -> None:
        at = timezone.now() - timedelta(seconds=age)
        Supervisor.objects.create(
            boot_id=f"{age}", host_id="h", started_at=at, beat_at=at, swept_at=at if swept else None
        )

    return make


def nothing() -> None:
    """Leave the deployment without a supervisor."""


def two_of_which_the_swept_one_is_dead() -> None:
    beat(settings.KANDEV_LEASE_TTL + 5, swept=True)()
    beat(0, swept=False)()


def lack_a_migration() -> None:
    beat(0, swept=True)()
    MigrationRecorder.Migration.objects.filter(app="sessions_app").latest("id").delete()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (beat(0, swept=True), []),
        (nothing, ["supervisor", "sweep"]),
        (beat(0, swept=False), ["sweep"]),
        (beat(settings.KANDEV_LEASE_TTL + 5, swept=True), ["supervisor", "sweep"]),
        (two_of_which_the_swept_one_is_dead, ["sweep"]),
        (lack_a_migration, ["migrations"]),
    ],
    ids=["all there", "no supervisor", "not swept yet", "beat too old", "the swept one is dead", "migration missing"],
)
def test_readyz_names_what_is_missing(given: Callable[[], None], missing: list[str]) -> None:
    given()
    answer = Client().get("/readyz")
    assert answer.json() == {"status": "not ready" if missing else "ready", "missing": missing}
    assert answer.status_code == (503 if missing else 200)


@pytest.mark.django_db
def test_readiness_check_does_not_rebuild_the_migration_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    beat(0, swept=True)()
    assert Client().get("/readyz").status_code == 200

    def build(*args: Any) -> None:
        raise AssertionError("the graph was built again")

    monkeypatch.setattr(MigrationLoader, "build_graph", build)
    assert Client().get("/readyz").status_code == 200


@pytest.mark.django_db
def test_unreachable_database_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(*args: Any) -> bool:
        raise DatabaseError("gone")

    monkeypatch.setattr(health, "_has_unapplied_migrations", no_answer)
    answer = Client().get("/readyz")
    assert (answer.status_code, answer.json()["missing"]) == (503, ["database"])
