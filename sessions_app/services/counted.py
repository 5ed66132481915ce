"""Counters that the rows know: read from them when they are asked for, and carried over when the rows go.

So a counter is right whichever process is asked, and never falls, whatever is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.db.models import Count, DurationField, ExpressionWrapper, F, Model, Q, QuerySet, Sum

from sessions_app.domain.states import RunState
from sessions_app.domain.verification import ReceiptKind
from sessions_app.models import (
    ContinuityReceipt,
    Intent,
    IntentKind,
    Prompt,
    ResumeToken,
    Run,
    TaskSession,
    metric_count,
)

RESUME_BUCKETS: Final = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
"""Seconds; the last one is open."""
CAME_UP: Final = frozenset(kind.value for kind in ReceiptKind) - {ReceiptKind.FAILED, ReceiptKind.WORKSPACE_ONLY}
"""Outcomes of a start order after which an agent is up."""
TRANSITIONS: Final = {"consumed": "consumed_at", "revoked": "revoked_at", "expired": "expired_at"}
_STARTS: Final = Q(kind=IntentKind.START, done_at__isnull=False, outcome__in=CAME_UP)
Read = Callable[[QuerySet[Any]], Iterator[metric_count.Count]]


def _resumes(rows: QuerySet[Any]) -> Iterator[metric_count.Count]:
    groups = rows.order_by().values_list("kind", "session__agent_profile__agent_type").annotate(n=Count("id"))
    for kind, agent_type, number in groups:
        yield "kandev_resumes_total", {"kind": kind, "agent_type": agent_type}, number


def _interruptions(rows: QuerySet[Any]) -> Iterator[metric_count.Count]:
    cut = rows.filter(state=RunState.INTERRUPTED).order_by().values_list("reason").annotate(n=Count("id"))
    for reason, number in cut:
        yield "kandev_runs_interrupted_total", {"reason": reason}, number


def _tokens(rows: QuerySet[Any]) -> Iterator[metric_count.Count]:
    found = rows.aggregate(minted=Count("id"), **{name: Count(field) for name, field in TRANSITIONS.items()})
    for name, number in found.items():
        yield "kandev_tokens_total", {"transition": name}, number


def _continued(rows: QuerySet[Any]) -> Iterator[metric_count.Count]:
    sent = rows.filter(kind="continue").exclude(journal_epoch="").count()
    yield "kandev_reconciler_continue_prompts_sent_total", {}, sent


def _events(rows: QuerySet[Any]) -> Iterator[metric_count.Count]:
    yield "kandev_events_ingested_total", {}, rows.aggregate(n=Sum("last_seq"))["n"] or 0


def _starts(rows: QuerySet[Any]) -> Iterator[metric_count.Count]:
    """Those that nobody asked for, and how long all of them took, from the order to the agent."""
    took = ExpressionWrapper(F("done_at") - F("created_at"), output_field=DurationField())
    within = {f"le{index}": Count("id", filter=Q(took__lte=timedelta(seconds=edge))) for index, edge in _edges()}
    found = (
        rows.filter(_STARTS)
        .annotate(took=took)
        .aggregate(n=Count("id"), by_itself=Count("id", filter=Q(by=None)), sum=Sum("took"), **within)
    )
    yield "kandev_reconciler_sessions_restarted_total", {}, found["by_itself"]
    name, below = "kandev_resume_duration_seconds", 0
    for index, edge in _edges():
        yield f"{name}_bucket", {"le": f"{edge:g}"}, found[f"le{index}"] - below
        below = found[f"le{index}"]
    yield f"{name}_bucket", {"le": "+Inf"}, found["n"] - below
    yield f"{name}_sum", {}, found["sum"].total_seconds() if found["sum"] else 0.0


def _edges() -> Iterator[tuple[int, float]]:
    return enumerate(RESUME_BUCKETS)


@dataclass(frozen=True, slots=True)
class _Source:
    """One table, and what it counts; one query."""

    model: type[Model]
    read: Read
    of_session: str = "session_id__in"


SOURCES: Final[Sequence[_Source]] = (
    _Source(ContinuityReceipt, _resumes),
    _Source(Run, _interruptions),
    _Source(ResumeToken, _tokens),
    _Source(Prompt, _continued),
    _Source(Intent, _starts),
    _Source(TaskSession, _events, "id__in"),
)


def read() -> Iterator[metric_count.Count]:
    """What the rows count now; one query for each of `SOURCES`. Histograms come with their buckets apart."""
    for source in SOURCES:
        yield from source.read(source.model._default_manager.all())


def carry_over_session(session_id: Any) -> None:
    """A session is about to be deleted, in the caller's transaction: what its rows have counted stays counted."""
    for source in SOURCES:
        rows = source.model._default_manager.filter(**{source.of_session: [session_id]})
        _keep(source.read(rows))


def carry_over_tokens(ids: Sequence[Any]) -> None:
    """Keys are about to be deleted, in the caller's transaction."""
    _keep(_tokens(ResumeToken.objects.filter(id__in=ids)))


def _keep(counts: Iterator[metric_count.Count]) -> None:
    metric_count.count_with([count for count in counts if count[2]])
