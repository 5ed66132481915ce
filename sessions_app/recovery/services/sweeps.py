"""Request sweeps, and read the result of each of their rows."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet

from sessions_app.kernel import wakeups
from sessions_app.models import ContinuityReceipt, RecoverySweep, SweepOutcome, SweepRequest, TaskSession
from sessions_app.recovery.rules.recovery import UNDER_WAY, row_result
from sessions_app.sessions.services.queries import SECRET_FIELDS

_FACTS: Final = ("receipt_kind", "agent_action", "rule", "reason", "error_message", "session_state")


@dataclass(frozen=True, slots=True)
class RowResult:
    """The result of one row."""

    row: int
    """Id of the ``SweepOutcome``."""
    session: uuid.UUID
    observed: str
    kind: str
    """The kind of its receipt, ``failed``, ``reattached``, ``under_way`` or ``skipped``."""


def load_results(user: User, sweeps: Iterable[RecoverySweep]) -> dict[uuid.UUID, list[RowResult]]:
    """Return the results that ``user`` may see, by sweep and in order; two queries.

    A start that a sweep requested ends after it: its result is the first receipt of the session since.
    """
    begun = {sweep.id: sweep.started_at for sweep in sweeps}
    rows = SweepOutcome.objects.visible_to(user).filter(sweep__in=begun).order_by("id")
    results = [
        (row.pop("id"), row.pop("sweep_id"), row.pop("session_id"), row.pop("observed"), row_result(row))
        for row in rows.values("id", "sweep_id", "session_id", "observed", *_FACTS)
    ]
    waiting = {session for _, _, session, _, kind in results if kind == UNDER_WAY}
    receipts = defaultdict(list)
    if waiting:
        later = ContinuityReceipt.objects.visible_to(user).filter(
            session_id__in=waiting, created_at__gte=min(begun.values())
        )
        for session, created_at, kind in later.order_by("created_at").values_list("session_id", "created_at", "kind"):
            receipts[session].append((created_at, kind))
    found: dict[uuid.UUID, list[RowResult]] = {sweep: [] for sweep in begun}
    for row, sweep, session, observed, result in results:
        since = []
        if result == UNDER_WAY:
            since = [kind for at, kind in receipts[session] if at >= begun[sweep]]
        found[sweep].append(RowResult(row, session, observed, next(iter(since), result)))
    return found


_SECRETS: Final = tuple(f"session__{name}" for name in SECRET_FIELDS)


def request_sweep(by: User | None, *, dry_run: bool = False, sessions: Iterable[uuid.UUID] = ()) -> SweepRequest:
    """Request a sweep of these sessions, or of all that claim to run, and wake the supervisors."""
    with transaction.atomic():
        request = SweepRequest.objects.create(
            by=by, dry_run=dry_run, sessions=[str(session_id) for session_id in sessions]
        )
        wakeups.notify_on_commit()
    return request


@dataclass(frozen=True, slots=True)
class OutcomeFilter:
    """A filter for the rows of a sweep; empty fields match all."""

    text: str = ""
    """Searched in the task's title and the agent profile's name."""
    observed: str = ""
    """alive, dead or unknown."""
    result: str = ""
    """A kind of receipt, ``under_way`` or ``skipped``."""


@dataclass(frozen=True, slots=True)
class OutcomePage:
    """Rows of a sweep with their results."""

    rows: Sequence[tuple[SweepOutcome, str]]
    """Each with its kind of receipt, ``under_way`` or ``skipped``."""
    count: int
    """Number of matching rows."""
    counts: Mapping[str, int]
    """Number of rows by result, of all that the user may see."""

    @property
    def total(self) -> int:
        """How many rows the user may see."""
        return sum(self.counts.values())


def load_outcomes(user: User, sweep: RecoverySweep, wanted: OutcomeFilter, *, start: int, limit: int) -> OutcomePage:
    """Return ``limit`` matching rows of ``sweep`` from index ``start``; a constant number of queries."""
    visible = SweepOutcome.objects.visible_to(user).filter(sweep=sweep)
    results = load_results(user, [sweep])[sweep.id]
    matching = [result for result in results if _matches(result, wanted)]
    if wanted.text:
        with_text = _matching_text(visible, wanted.text)
        matching = [result for result in matching if result.row in with_text]
    shown = matching[start : start + limit]
    rows = visible.select_related("session__task", "session__agent_profile").defer(*_SECRETS)
    outcomes = rows.in_bulk([result.row for result in shown])
    return OutcomePage(
        rows=[(outcomes[result.row], result.kind) for result in shown],
        count=len(matching),
        counts=Counter(result.kind for result in results),
    )


def _matches(result: RowResult, wanted: OutcomeFilter) -> bool:
    return wanted.observed in ("", result.observed) and wanted.result in ("", result.kind)


def _matching_text(rows: QuerySet[SweepOutcome], text: str) -> set[int]:
    titled = rows.filter(session__task__title__icontains=text) | rows.filter(
        session__agent_profile__name__icontains=text
    )
    return set(titled.values_list("id", flat=True))


def count_results(user: User, sweeps: Sequence[RecoverySweep]) -> dict[uuid.UUID, Mapping[str, int]]:
    """Count the user's rows by result, for each sweep."""
    return {key: Counter(result.kind for result in rows) for key, rows in load_results(user, sweeps).items()}


def report_for(user: User, request: SweepRequest) -> list[dict[str, Any]]:
    """Return the rows of a request's report that belong to the user's teams."""
    rows: list[dict[str, Any]] = (request.report or {}).get("sessions", [])
    ids = [row["session_id"] for row in rows]
    visible = TaskSession.objects.visible_to(user).filter(id__in=ids).values_list("id", flat=True)
    visible_ids = {str(session_id) for session_id in visible}
    return [row for row in rows if row["session_id"] in visible_ids]
