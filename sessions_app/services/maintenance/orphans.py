"""Find and report orphans: things with our marks that belong to no session. Nothing of them is changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from executors_app.domain import Orphan
from executors_app.errors import ExecutorError
from executors_app.models import Executor, ExecutorRunning
from executors_app.plugins import runtimes
from executors_app.runtimes import SupportsOrphans
from sessions_app.models import Orphaned
from sessions_app.services.maintenance.chore_run import ChoreRun

log = logging.getLogger(__name__)
SEARCH_TIMEOUT: Final = 15.0
"""Seconds for one executor; the executors of a runtime are asked concurrently."""


@dataclass(frozen=True, slots=True)
class OrphanSource:
    """Where orphans are searched: an executor, or a runtime without executors."""

    name: str
    """The executor's name; empty: no executor has this runtime."""
    configs: Sequence[Mapping[str, Any]]
    """Configuration for the runtime; empty for a runtime without executors."""


@dataclass(slots=True)
class OrphanReport:
    """Result of one search of a runtime."""

    found: list[Orphan] = field(default_factory=list)
    sources: dict[str, OrphanSource] = field(default_factory=dict)
    """Where each orphan was found, by its id."""
    silent: dict[str, str] = field(default_factory=dict)
    """Why an executor could not be reached, by its name; for staff."""


def searchable_runtimes() -> dict[str, SupportsOrphans]:
    """Return the runtimes that can list orphans, by name."""
    return {name: place for name, place in runtimes().items() if isinstance(place, SupportsOrphans)}


def sources_of(runtime: str) -> list[OrphanSource]:
    """Return one source for each executor of a runtime; empty if the runtime is not used here."""
    rows = Executor.objects.filter(runtime=runtime).values_list("name", "config")
    return [OrphanSource(name, [config]) for name, config in rows]


def find_orphans(runtime: str, place: SupportsOrphans) -> OrphanReport:
    """Return what exists now and belongs to no row. An unreachable executor hides no orphans of the others.

    A runtime without executors is searched too; if it does not answer, that is not reported.
    """
    known = frozenset(str(pk) for pk in ExecutorRunning.objects.values_list("pk", flat=True))
    sources = sources_of(runtime) or [OrphanSource("", [])]
    report = OrphanReport()
    for source, answer in zip(sources, asyncio.run(_search_all(place, known, sources)), strict=True):
        if isinstance(answer, str):
            report.silent |= {source.name: answer} if source.name else {}
            continue
        # Two executors may share an engine or host. What was launched during the search has its row by now.
        new = [one for one in answer if one.id not in report.sources and (one.is_helper or not _is_known_session(one))]
        report.found += new
        report.sources |= {one.id: source for one in new}
    return report


async def _search_all(
    place: SupportsOrphans, known: frozenset[str], sources: Sequence[OrphanSource]
) -> Sequence[list[Orphan] | str]:
    return await asyncio.gather(*(_search(place, known, source) for source in sources))


async def _search(place: SupportsOrphans, known: frozenset[str], source: OrphanSource) -> list[Orphan] | str:
    """Return the orphans of one source, or why it could not be reached."""
    try:
        return await asyncio.wait_for(place.orphans(known, source.configs), SEARCH_TIMEOUT)
    except TimeoutError:
        return f"It did not answer within {SEARCH_TIMEOUT:g} seconds."
    except ExecutorError as error:
        return error.message_for_staff
    except Exception as error:
        log.warning("no look for orphans at %s", source.name, exc_info=error)
        return f"Its answer is not valid ({type(error).__name__})."


def _is_known_session(one: Orphan) -> bool:
    try:
        return ExecutorRunning.objects.filter(pk=one.execution_id).exists()
    except ValidationError:  # the mark is not a valid id
        return False


def report_orphans(work: ChoreRun) -> None:
    """Check every runtime that is used here, and store what was found for the pages."""
    for name, place in searchable_runtimes().items():
        if not sources_of(name):
            if not work.dry_run:
                Orphaned.objects.filter(runtime=name).delete()
            continue
        report = find_orphans(name, place)
        for executor, problem in report.silent.items():
            work.fail(f"{executor} ({name}) could not be reached: {problem}")
        work.kept += len(report.found)
        if not work.dry_run:
            _save_report(name, report)


def _save_report(runtime: str, report: OrphanReport) -> None:
    now = timezone.now()
    with transaction.atomic():
        for one in report.found:
            values = {"execution_id": one.execution_id[:64], "status": one.status[:64], "last_seen_at": now}
            Orphaned.objects.update_or_create(runtime=runtime, name=one.id[:200], defaults=values)
        if not report.silent:  # otherwise a missing orphan may be at an executor that did not answer
            Orphaned.objects.filter(runtime=runtime).exclude(name__in=[one.id[:200] for one in report.found]).delete()
