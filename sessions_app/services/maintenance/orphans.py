"""The report of what carries our marks and belongs to no session; nothing of it is touched (rules, section 7)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from executors_app.domain import Orphan
from executors_app.errors import ExecutorError, RuntimeUnavailable
from executors_app.models import Executor, ExecutorRunning
from executors_app.plugins import runtimes
from executors_app.runtimes import FindsOrphans
from sessions_app.models import Orphaned
from sessions_app.services.maintenance.work import Work

PATIENCE: Final = 15.0
"""Seconds for all machines of one runtime."""


def places() -> dict[str, FindsOrphans]:
    """Runtimes that can tell, by name."""
    return {name: place for name, place in runtimes().items() if isinstance(place, FindsOrphans)}


def configs_of(runtime: str) -> list[Mapping[str, Any]]:
    """The settings of a runtime's executors; empty: it is not used here."""
    return list(Executor.objects.filter(runtime=runtime).values_list("config", flat=True))


def look(runtime: str, place: FindsOrphans) -> list[Orphan]:
    """What is there now and belongs to no row; raises ExecutorError."""
    known = {str(pk) for pk in ExecutorRunning.objects.values_list("pk", flat=True)}
    try:
        found = asyncio.run(asyncio.wait_for(place.orphans(known, configs_of(runtime)), PATIENCE))
    except TimeoutError as error:
        raise RuntimeUnavailable(f"It did not answer within {PATIENCE:g} seconds.") from error
    # One that was launched during the look has its row by now.
    ids = [one.execution_id for one in found if not one.is_helper and _is_known(one)]
    return [one for one in found if one.is_helper or one.execution_id not in ids]


def _is_known(one: Orphan) -> bool:
    try:
        return ExecutorRunning.objects.filter(pk=one.execution_id).exists()
    except ValidationError:  # a mark that is no id at all
        return False


def orphans(work: Work) -> None:
    """Look at every runtime that is used here, and keep what was found for the pages."""
    for name, place in places().items():
        if not configs_of(name):
            if not work.dry_run:
                Orphaned.objects.filter(runtime=name).delete()
            continue
        try:
            found = look(name, place)
        except ExecutorError as error:
            work.fail(f"{name} could not be asked: {error.message}")
            continue
        work.kept += len(found)
        if not work.dry_run:
            _keep(name, found)


def _keep(runtime: str, found: list[Orphan]) -> None:
    now = timezone.now()
    with transaction.atomic():
        for one in found:
            values = {"execution_id": one.execution_id[:64], "status": one.status[:64], "last_seen_at": now}
            Orphaned.objects.update_or_create(runtime=runtime, name=one.id[:200], defaults=values)
        Orphaned.objects.filter(runtime=runtime).exclude(name__in=[one.id[:200] for one in found]).delete()
