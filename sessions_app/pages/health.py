"""``/healthz``: this process is up. ``/readyz``: what the pages say may be believed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from django.contrib.auth.decorators import login_not_required
from django.db import Error, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache

from sessions_app.models import Supervisor


@login_not_required
@never_cache
def healthz(request: HttpRequest) -> JsonResponse:
    """200 as long as this process answers."""
    return JsonResponse({"status": "ok"})


@login_not_required
@never_cache
def readyz(request: HttpRequest) -> JsonResponse:
    """200, or 503 with the names of what is missing: database, migrations, supervisor, sweep."""
    missing = missing_dependencies()
    answer = {"status": "not ready" if missing else "ready", "missing": missing}
    return JsonResponse(answer, status=503 if missing else 200)


def missing_dependencies() -> list[str]:
    """Each names what the later ones depend on, so the first one stops the look."""
    try:
        if _has_unapplied_migrations():
            return ["migrations"]
        return list(_missing_supervision())
    except Error:
        return ["database"]


def _has_unapplied_migrations() -> bool:
    return not _known_migrations() <= MigrationRecorder(connection).applied_migrations().keys()


@cache
def _known_migrations() -> frozenset[tuple[str, str]]:
    """App and name of each. A process has the code that it began with, and building their graph takes long."""
    return frozenset(MigrationLoader(None).graph.nodes)


def _missing_supervision() -> Iterator[str]:
    alive = Supervisor.objects.alive()
    if not alive.exists():
        yield "supervisor"
    if not alive.filter(swept_at__isnull=False).exists():
        yield "sweep"
