"""Which executions are on this machine, whatever its host is called by now."""

from __future__ import annotations

import uuid
from typing import Final

from django.db.models import QuerySet

from executors_app.models import ExecutorRunning
from sessions_app.hosts.supervision import bound_runtimes
from sessions_app.supervisor import leases

PAGE: Final = 200
"""Executions that are read at once."""


def find_own_executions(rows: QuerySet[ExecutorRunning], limit: int) -> list[ExecutorRunning]:
    """Return those of the executions that this machine proves to be its own, ``limit`` at most.

    Not by the name of the host, and not by its earlier processes: it may have been renamed, a container has another
    name after each restart, and rows of processes are deleted one day. Looks at the disk for those of earlier boots.
    """
    placed = rows.filter(runtime__in=bound_runtimes()).exclude(host_id="").order_by("id")
    found: list[ExecutorRunning] = []
    after = uuid.UUID(int=0)
    while page := list(placed.filter(id__gt=after)[:PAGE]):
        found += [row for row in page if leases.is_local_execution(row)]
        if len(found) >= limit:
            break
        after = page[-1].id
    return found[:limit]
