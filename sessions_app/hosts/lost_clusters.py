"""Clusters that a person has declared lost: what was started there and cannot be reached counts as ended.

That a cluster does not answer, or that another one answers in its place, proves nothing about the Pods of the first.
Only a person knows that it is gone for good. The declaration is recorded with each execution, so it never holds for
what is started later; it is refused while the cluster answers, and forgotten if the execution is seen alive after all.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Count, F, Q, QuerySet, TextField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from executors_app.models import Executor, ExecutorRunning
from executors_app.plugins import UnknownPlugin, runtime
from executors_app.runtimes import SupportsLostPlaces, run_blocking
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import LOST_PLACE, PLACE, ExecutorStatus
from executors_app.wire.exhaustion import is_exhausted
from sessions_app.accounts.audit import record_change
from sessions_app.hosts.supervision import LIVE
from sessions_app.kernel import wakeups
from sessions_app.kernel.services.errors import ClusterAnswers, NotFound
from sessions_app.recovery.rules.resumability import UNREACHABLE

MAX_SHOWN: Final = 50
MAX_AT_ONCE: Final = 1000
"""Sessions that one declaration covers; what is left is listed again."""


@dataclass(frozen=True, slots=True)
class UnreachedCluster:
    """A cluster of which no session can be reached."""

    executor_id: uuid.UUID
    executor: str
    """The name of the executor."""
    namespace: str
    """The uid of the namespace in which the sessions were started; empty if the cluster did not show it."""
    sessions: int

    @property
    def label(self) -> str:
        """The namespace's uid in words."""
        return self.namespace or "unknown"


def list_unreached_clusters(executor: str = "") -> list[UnreachedCluster]:
    """Return the clusters of which no session is reached, of all executors or those of this name; one query."""
    rows = _present().exclude(executor=None)
    if executor:
        rows = rows.filter(executor__name=executor)
    places = rows.order_by("executor__name", "place").values_list("executor_id", "executor__name", "place")
    counted = places.annotate(
        reached=Count("id", filter=Q(status__in=LIVE)), unreached=Count("id", filter=_unreached() & ~_declared())
    )
    found = counted.filter(reached=0, unreached__gt=0)[:MAX_SHOWN]
    return [UnreachedCluster(pk, name, place, unreached) for pk, name, place, _, unreached in found]


def declare_lost(executor_id: uuid.UUID, namespace: str, by: User | None) -> int:
    """Record that the cluster of these sessions is gone for good; return how many sessions it concerns.

    ``namespace``: the uid as ``list_unreached_clusters`` shows it. ``by`` is None for somebody at the command line.
    Raises NotFound if no session waits for it, and ClusterAnswers if it answers, reaches a session, or
    could not be asked because this machine is exhausted.
    """
    executor = Executor.objects.filter(pk=executor_id).first()
    rows = _present().filter(executor_id=executor_id, place=namespace)
    waiting = list(rows.filter(_unreached()).exclude(_declared()).values_list("pk", flat=True)[:MAX_AT_ONCE])
    if executor is None or not waiting:
        raise NotFound("No session waits for a cluster of this executor with that namespace.")
    if rows.filter(status__in=LIVE).exists() or _answers(executor.runtime, executor.config, namespace):
        raise ClusterAnswers(
            f"The cluster of the executor {executor.name} answers, so it is not lost. Give up single nodes or Pods "
            "there instead.",
            executor=executor.name,
        )
    marked = sum(_mark(pk, namespace) for pk in waiting)
    with transaction.atomic():
        record_change(by, executor, f"its cluster with the namespace {namespace or 'unknown'} was declared lost")
        wakeups.notify_on_commit()
    return marked


def _present() -> QuerySet[Any]:
    rows = ExecutorRunning.objects.filter(session__agent_execution_id=F("id"), state__has_key=PLACE)
    # The casts make comparisons those of texts: SQLite would read what they are compared with as JSON.
    return rows.annotate(
        place=Cast(KeyTextTransform(PLACE, "state"), TextField()),
        lost_place=Cast(KeyTextTransform(LOST_PLACE, "state"), TextField()),
    )


def _unreached() -> Q:
    return Q(status=ExecutorStatus.ERROR, error_code=UNREACHABLE)


def _declared() -> Q:
    return Q(lost_place__isnull=False, lost_place=F("place"))


def _answers(runtime_name: str, config: Mapping[str, Any], namespace: str) -> bool:
    try:
        place = runtime(runtime_name)
        return isinstance(place, SupportsLostPlaces) and run_blocking(place.place_answers(config, namespace))
    except (UnknownPlugin, ExecutorError) as error:
        if is_exhausted(error):
            raise ClusterAnswers(
                "The cluster could not be asked, because this machine has no file descriptors or memory left. Nothing "
                "was changed. Try again."
            ) from error
        return False


def _mark(execution_id: uuid.UUID, namespace: str) -> bool:
    """Record it with one execution, unless that was reached meanwhile."""
    with transaction.atomic():
        row = ExecutorRunning.objects.filter(_unreached(), pk=execution_id).select_for_update(no_key=True).first()
        if row is None or row.state.get(PLACE) != namespace:
            return False
        row.state = {**row.state, LOST_PLACE: namespace}
        row.save(update_fields=["state"])
        return True
