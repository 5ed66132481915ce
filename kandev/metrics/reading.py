"""The numbers as the database has them now, with a constant number of queries.

Labels are words of ours; whatever else a row may say counts as ``other``, so that no series is ever made by an agent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from django.db.models import Count, F, Q
from django.db.models.functions import Now
from django_q.models import OrmQ

from executors_app.agentctl.protocol import Code
from executors_app.domain import ExecutorStatus, Observed
from executors_app.models import ExecutorRunning
from executors_app.plugins import agent_types, runtimes
from kandev.metrics.catalogue import CATALOGUE, DATABASE_UP
from sessions_app.domain.states import PromptState, SessionState
from sessions_app.domain.verification import ReceiptKind
from sessions_app.models import Chore, Orphaned, Prompt, Supervisor, TaskSession, metric_count
from sessions_app.services import counted

OTHER: Final = "other"
Sample = tuple[Mapping[str, str], float]
Readings = Mapping[str, list[Sample]]
"""Samples by the name of their series; of a histogram the buckets, each for itself, and the sum."""
REASONS: Final = frozenset(
    {
        "agent_exited",
        "agent_gone",
        "agentctl_gone",
        "out_of_memory",
        "wait_timeout",
        "stopped",
        "closed",
        "idle",
        "imported",
    }
)
"""Why turns are interrupted."""
PROMPTS: Final = (
    PromptState.QUEUED,
    PromptState.SENDING,
    PromptState.ACCEPTED,
    PromptState.DELIVERED,
    PromptState.HELD,
)


def read() -> Readings:
    """Everything; 14 queries, whatever the deployment holds."""
    found: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
    for name, labels, value in _all():
        found[name, tuple((label, _bounded(label, text)) for label, text in labels.items())] += value
    samples: dict[str, list[Sample]] = {}
    for (name, pairs), value in found.items():
        samples.setdefault(name, []).append((dict(pairs), value))
    return samples


def _all() -> Iterator[metric_count.Count]:
    yield from _nothing()
    yield from counted.read()
    for name, numbers in metric_count.totals().items():
        for labels, value in numbers:
            yield name, labels, value
    yield from _sessions()
    yield from _executions()
    yield from _processes()
    yield from _chores()


def _nothing() -> Iterator[metric_count.Count]:
    """What is there with 0 from the first, so that a rate can be asked for; and that the database answers."""
    yield DATABASE_UP.name, {}, 1
    for metric in CATALOGUE.values():
        if metric.kind == "counter" and not metric.labels:
            yield metric.name, {}, 0
    for state in SessionState:
        yield "kandev_sessions", {"state": state}, 0
    for prompt in PROMPTS:
        yield "kandev_prompts", {"state": prompt}, 0


def _sessions() -> Iterator[metric_count.Count]:
    states = TaskSession.objects.order_by().values_list("state", "error_code").annotate(n=Count("id"))
    for state, code, number in states:
        yield "kandev_sessions", {"state": state}, number
        if code:
            yield "kandev_session_errors", {"code": code}, number
    open_ones = Prompt.objects.filter(state__in=PROMPTS).order_by()
    for state, number in open_ones.values_list("state").annotate(n=Count("id")):
        yield "kandev_prompts", {"state": state}, number


def _executions() -> Iterator[metric_count.Count]:
    held = Count("id", filter=~Q(owner="") & Q(lease_expires_at__gt=Now()))
    rows = ExecutorRunning.objects.order_by().values_list("runtime", "status").annotate(n=Count("id"), held=held)
    yield "kandev_leases_held", {}, 0
    for runtime, status, number, leases in rows:
        yield "kandev_executions", {"runtime": runtime, "status": status}, number
        yield "kandev_leases_held", {}, leases


def _processes() -> Iterator[metric_count.Count]:
    alive = Supervisor.objects.alive().aggregate(n=Count("boot_id"), swept=Count("swept_at"))
    yield "kandev_supervisors", {}, alive["n"]
    yield "kandev_supervisors_swept", {}, alive["swept"]
    yield "kandev_worker_queue", {}, OrmQ.objects.count()


def _chores() -> Iterator[metric_count.Count]:
    for row in Chore.objects.all():
        labels = {"chore": row.name}
        yield "kandev_maintenance_failing", labels, bool(row.failed_at)
        if row.succeeded_at:
            yield "kandev_maintenance_last_success_timestamp_seconds", labels, row.succeeded_at.timestamp()
    for runtime, number in Orphaned.objects.order_by().values_list(F("runtime")).annotate(n=Count("id")):
        yield "kandev_orphans", {"runtime": runtime}, number


def _bounded(label: str, text: str) -> str:
    known = _known().get(label)
    return text if known is None or text in known else OTHER


def _known() -> Mapping[str, Collection[str]]:
    """The words that a label may be; labels that are not here are only ever ours."""
    return {
        "agent_type": agent_types(),
        "code": _codes(),
        "kind": set(map(str, ReceiptKind)),
        "observed": set(map(str, Observed)),
        "reason": REASONS,
        "runtime": runtimes(),
        "state": {*map(str, SessionState), *map(str, PromptState)},
        "status": set(map(str, ExecutorStatus)),
    }


def _codes() -> Collection[str]:
    return {*map(str, Code), *OUR_CODES}


OUR_CODES: Final[frozenset[Any]] = frozenset(
    {"unreachable", "worktree_missing", "not_resumable", "start_timeout", "internal_error", "launch_failed"}
)
"""Codes of sessions' errors that are not agentctl's."""
