"""Health endpoints. ``/healthz``: this process responds. ``/readyz``: database and supervisor are ready, too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache
from typing import Final

from django.contrib.auth.decorators import login_not_required
from django.db import Error, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache

from executors_app.secret_key import is_secret_key_wrong
from sessions_app.hosts.services import roles_down
from sessions_app.models import Supervisor

_was_ready: Final = threading.Event()
"""Set once this process has been ready."""


@login_not_required
@never_cache
def healthz(request: HttpRequest) -> JsonResponse:
    """Return 200 as long as this process responds."""
    return JsonResponse({"status": "ok"})


@login_not_required
@never_cache
def readyz(request: HttpRequest) -> JsonResponse:
    """Return 200, or 503 with what is missing: database, migrations, secret_key, supervisor, sweep.

    ``down`` names the roles that are down although requests can be served: nobody need log in to read this page, so it
    names no host.

    With ``?once``, a process that has been ready keeps 200 as long as it responds. For proxies without a page of their
    own: a new process gets requests only when they can be served, and later it says itself what is missing.
    """
    if "once" in request.GET and _was_ready.is_set():
        return JsonResponse({"status": "was ready"})
    missing = missing_dependencies()
    if missing:
        return JsonResponse({"status": "not ready", "missing": missing}, status=503)
    try:
        down = roles_down()
    except Error:  # the database has gone meanwhile
        return JsonResponse({"status": "not ready", "missing": ["database"]}, status=503)
    _was_ready.set()
    return JsonResponse({"status": "ready", "missing": [], "down": down})


def missing_dependencies() -> list[str]:
    """Return what is missing. Without database, migrations or the right key, nothing else is checked: it needs them."""
    try:
        if _has_unapplied_migrations():
            return ["migrations"]
        if is_secret_key_wrong():
            return ["secret_key"]
        return list(_missing_supervision())
    except Error:
        return ["database"]


def _has_unapplied_migrations() -> bool:
    return not _known_migrations() <= MigrationRecorder(connection).applied_migrations().keys()


@cache
def _known_migrations() -> frozenset[tuple[str, str]]:
    """Return app and name of each migration. Cached: building the graph is slow, and the loaded code never changes."""
    return frozenset(MigrationLoader(None).graph.nodes)


def _missing_supervision() -> Iterator[str]:
    alive = Supervisor.objects.alive()
    if not alive.exists():
        yield "supervisor"
    if not alive.filter(swept_at__isnull=False).exists():
        yield "sweep"
