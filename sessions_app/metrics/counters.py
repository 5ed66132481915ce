"""Counters derived from rows, and the in-memory buffer of a supervisor's measurements."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from django.db import connection
from django.db.models import Case, Count, F, FloatField, Func, Model, OuterRef, Q, QuerySet, Subquery, Sum, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce, Least, Round
from django.db.models.lookups import LessThanOrEqual

from sessions_app.kernel.rules.states import PromptKind, RunState
from sessions_app.metrics import models as metric_counts
from sessions_app.models import ContinuityReceipt, Intent, IntentKind, Prompt, TaskSession, Turn, WaitKey
from sessions_app.recovery.rules.verification import ReceiptKind

RESUME_BUCKETS: Final = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
"""Upper bounds in seconds; a further bucket takes everything longer."""
SUCCESSFUL_OUTCOMES: Final = frozenset(kind.value for kind in ReceiptKind) - {
    ReceiptKind.FAILED,
    ReceiptKind.WORKSPACE_ONLY,
}
"""Outcomes of a start intent after which an agent runs."""
TOKEN_TRANSITIONS: Final = {"consumed": "consumed_at", "revoked": "revoked_at", "expired": "expired_at"}
_WITHOUT_BUCKET: Final = Q(
    kind=IntentKind.START, done_at__isnull=False, outcome__in=SUCCESSFUL_OUTCOMES, bucket__isnull=True
)
"""Successful starts whose duration is not stored yet."""
CounterReader = Callable[[QuerySet[Any]], Iterator[metric_counts.Count]]


def _agent_type() -> Subquery:
    """Return the type of the agent of a receipt's session."""
    return Subquery(TaskSession.objects.filter(id=OuterRef("session_id")).values("agent_profile__agent_type"))


def _resumes(rows: QuerySet[Any]) -> Iterator[metric_counts.Count]:
    stored = rows.filter(agent_type__gt="").order_by().values_list("kind", "agent_type")
    # Not by a join: for that, SQLite would read all sessions.
    others = rows.filter(agent_type="").annotate(type=_agent_type()).order_by().values_list("kind", "type")
    found: Counter[tuple[str, str]] = Counter()
    # One statement: what becomes stored between two of them would be counted twice, or not at all.
    for kind, agent_type, number in stored.annotate(n=Count("*")).union(others.annotate(n=Count("*")), all=True):
        found[kind, agent_type] += number
    for (kind, agent_type), number in found.items():
        yield "kandev_resumes_total", {"kind": kind, "agent_type": agent_type}, number


def _interruptions(rows: QuerySet[Any]) -> Iterator[metric_counts.Count]:
    cut = rows.filter(state=RunState.INTERRUPTED).order_by().values_list("reason").annotate(n=Count("id"))
    for reason, number in cut:
        yield "kandev_runs_interrupted_total", {"reason": reason}, number


def _tokens(rows: QuerySet[Any]) -> Iterator[metric_counts.Count]:
    found = rows.aggregate(minted=Count("id"), **{name: Count(field) for name, field in TOKEN_TRANSITIONS.items()})
    for name, number in found.items():
        yield "kandev_tokens_total", {"transition": name}, number


def _continued(rows: QuerySet[Any]) -> Iterator[metric_counts.Count]:
    sent = rows.filter(kind=PromptKind.CONTINUE).exclude(journal_epoch="").count()
    yield "kandev_reconciler_continue_prompts_sent_total", {}, sent


def _events(rows: QuerySet[Any]) -> Iterator[metric_counts.Count]:
    yield "kandev_events_ingested_total", {}, rows.aggregate(n=Sum("last_seq"))["n"] or 0


class _Days(Func):
    """A time as a number of days, with a precision of a millisecond; for SQLite."""

    function = "julianday"
    output_field = FloatField()


class _Epoch(Func):
    """A time or a duration as seconds; for PostgreSQL."""

    template = "EXTRACT(EPOCH FROM %(expressions)s)"
    output_field = FloatField()


def _start_seconds() -> Combinable:
    """Return the seconds from an agent's death until the start that replaced it was done, else from its request.

    For their difference on SQLite, Django would call a Python function for each row and use: a second for 10,000 rows.
    """
    # A death by the clock of another machine may lie behind the request.
    since = Least(Coalesce("agent_died_at", "created_at"), F("created_at"))
    if connection.vendor == "sqlite":
        return Round((_Days(F("done_at")) - _Days(since)) * Value(86_400.0), precision=3)
    return _Epoch(F("done_at")) - _Epoch(since)


def _starts(rows: QuerySet[Any]) -> Iterator[metric_counts.Count]:
    """Count automatic starts, and the durations of all starts from the intent to the agent."""
    stored = rows.filter(bucket__isnull=False).order_by().values_list("bucket")
    others = rows.filter(_WITHOUT_BUCKET).annotate(took=_start_seconds()).order_by().values_list("took")
    found = _numbers(stored, "seconds").union(_numbers(others, "took"), all=True)  # one statement, as for the receipts
    counts, seconds, by_itself = Counter[int](), 0.0, 0
    for bound, number, by_users, total in found:
        counts[bisect_left(RESUME_BUCKETS, bound)] += number
        seconds += total
        by_itself += number - by_users
    yield "kandev_reconciler_sessions_restarted_total", {}, by_itself
    name = "kandev_resume_duration_seconds"
    for at, edge in enumerate([*(f"{edge:g}" for edge in RESUME_BUCKETS), "+Inf"]):
        yield f"{name}_bucket", {"le": edge}, counts[at]
    yield f"{name}_sum", {}, seconds


def _numbers(groups: QuerySet[Any, Any], seconds: str) -> QuerySet[Any, Any]:
    """Add to each group the number of starts, how many of them users requested, and the sum of their seconds."""
    found: QuerySet[Any, Any] = groups.annotate(n=Count("*"), by_users=Count("by"), sum=Sum(seconds))
    return found


def store_values(limit: int) -> int:
    """Store durations of starts and agent types of receipts, which counting would otherwise compute again.

    Returns how many rows were changed, at most ``limit`` of each table. No counter changes its value.
    """
    took = _start_seconds()
    edges = [When(LessThanOrEqual(took, edge), then=Value(float(edge))) for edge in RESUME_BUCKETS]
    starts = Intent.objects.filter(_WITHOUT_BUCKET).order_by()
    receipts = ContinuityReceipt.objects.filter(agent_type="").order_by()
    changed = starts.filter(id__in=starts.values("id")[:limit]).update(seconds=took, bucket=Case(*edges, default=took))
    return changed + receipts.filter(id__in=receipts.values("id")[:limit]).update(agent_type=_agent_type())


COUNTER_SOURCES: Final[Sequence[tuple[type[Model], CounterReader]]] = (
    (ContinuityReceipt, _resumes),
    (Turn, _interruptions),
    (WaitKey, _tokens),
    (Prompt, _continued),
    (Intent, _starts),
    (TaskSession, _events),
)
"""Tables, and the counters that one query derives from each."""


def read_counters() -> Iterator[metric_counts.Count]:
    """Return all counters; one query for each of ``COUNTER_SOURCES``. Histogram buckets are not cumulative."""
    for model, read in COUNTER_SOURCES:
        yield from read(model._default_manager.all())


def keep_session_counts(session_id: Any) -> None:
    """Keep the counts of a session that is about to be deleted, in the caller's transaction."""
    for model, read in COUNTER_SOURCES:
        key = "session_id"
        if model is TaskSession:
            key = "id"
        _add_to_totals(read(model._default_manager.filter(**{key: session_id})))


def keep_token_counts(ids: Sequence[Any]) -> None:
    """Keep the counts of keys that are about to be deleted, in the caller's transaction."""
    _add_to_totals(_tokens(WaitKey.objects.filter(id__in=ids)))


def _add_to_totals(counts: Iterator[metric_counts.Count]) -> None:
    metric_counts.count_in_transaction([count for count in counts if count[2]])


FLUSH_EVERY: Final = 5.0
"""Seconds between two writes to the database."""
PASS_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Upper bounds in seconds."""
LAG_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600)
"""Upper bounds in seconds."""
BUCKETS: Final[Mapping[str, tuple[float, ...]]] = {
    "kandev_sweep_duration_seconds": PASS_BUCKETS,
    "kandev_reconciler_reconcile_duration_seconds": PASS_BUCKETS,
    "kandev_event_lag_seconds": LAG_BUCKETS,
}


class MetricsBuffer:
    """Counts of one process; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name, tuple(sorted(labels.items()))] += value

    def observe(self, name: str, seconds: float) -> None:
        """Add a duration to a histogram of ``BUCKETS``; a negative one, from a changed clock, counts as 0."""
        seconds = max(seconds, 0.0)
        edge = next((f"{bucket:g}" for bucket in BUCKETS[name] if seconds <= bucket), "+Inf")
        self.count(f"{name}_bucket", le=edge)
        self.count(f"{name}_sum", seconds)

    def swept(self, trigger: str, seconds: float, seen: Iterable[tuple[str, str]]) -> None:
        """Record one sweep, with runtime and observation of each execution."""
        self.observe("kandev_sweep_duration_seconds", seconds)
        if trigger == "reconcile":
            self.observe("kandev_reconciler_reconcile_duration_seconds", seconds)
        for runtime, observed in seen:
            self.count("kandev_sweep_executors_total", runtime=runtime, observed=observed)

    def written(self, said_at: float) -> None:
        """Record the delay of journal lines that are now in the log; ``said_at`` is the time of the first."""
        self.observe("kandev_event_lag_seconds", time.time() - said_at)

    @property
    def has_counts(self) -> bool:
        """Whether there is anything to write."""
        with self._lock:
            return bool(self._counts)

    def flush(self, part: str) -> None:
        """Write everything to the database; on an error, keep the counts for the next time."""
        with self._lock:
            # Only the exchange is under the lock: threads that count never wait for the database.
            taken, self._counts = self._counts, defaultdict(float)
        try:
            metric_counts.add_counts([(name, dict(labels), value) for (name, labels), value in taken.items()], part)
        except BaseException:
            with self._lock:
                for key, value in taken.items():
                    self._counts[key] += value
            raise


METRICS_BUFFER: Final = MetricsBuffer()
"""The buffer of this process."""
