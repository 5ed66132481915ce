"""What a row of a sweep came to: the one opinion behind every count and every filter."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sessions_app.domain.soundness import DAMAGED_ROW
from sessions_app.domain.states import SessionState
from sessions_app.models import ContinuityReceipt, RecoverySweep, SweepOutcome

FAILED: Final = "failed"
OVERTAKEN: Final = "overtaken"
"""``reason`` of a row that another supervisor, or a later start, has taken care of."""
REATTACHED: Final = "reattached"
SKIPPED: Final = "skipped"
UNDER_WAY: Final = "under_way"
OPENS_WORKSPACE: Final = "start_workspace"
STARTS: Final = ("resume", OPENS_WORKSPACE)
"""Decisions whose receipt comes after the sweep."""
_BY_STRATEGY: Final = {"native": "resumed", "history": "injected", "fresh": "fresh"}
_FACTS: Final = ("receipt_kind", "agent_action", "rule", "reason", "error_message", "session_state")


@dataclass(frozen=True, slots=True)
class Result:
    """What one row came to."""

    row: int
    """Its id."""
    session: uuid.UUID
    observed: str
    kind: str
    """The kind of its receipt, ``failed``, ``reattached``, ``under_way`` or ``skipped``."""


def result_of(row: Mapping[str, Any]) -> str:
    """What a row, or one of a report, came to by itself: a start without a receipt is ``under_way``."""
    if row.get("receipt_kind"):
        return str(row["receipt_kind"])
    failed = row.get("session_state") == SessionState.ERROR or bool(row.get("error_message"))
    # A session whose agent cannot come back is in error, and its workspace is opened: the receipt says how that went.
    if failed and row.get("rule") != DAMAGED_ROW and row.get("agent_action") != OPENS_WORKSPACE:
        return FAILED
    if row.get("reason") == OVERTAKEN:
        return SKIPPED
    if row.get("agent_action") == "reattach":
        return REATTACHED
    return UNDER_WAY if row.get("agent_action") in STARTS else SKIPPED


def planned_result(row: Mapping[str, Any]) -> str:
    """What a row of a dry run would come to. A native start counts as ``resumed``: it may turn out as ``loaded``."""
    action = row.get("agent_action")
    if action == "resume":
        return _BY_STRATEGY[row["strategy"]]
    if action == "start_workspace":
        return "workspace_only"
    return result_of({**row, "session_state": ""})


def results_of(user: Any, sweeps: Iterable[RecoverySweep]) -> dict[uuid.UUID, list[Result]]:
    """The rows that ``user`` may see, by sweep, in their order; two queries.

    A start that a sweep ordered ends after it: its result is the first receipt of the session since.
    """
    begun = {sweep.id: sweep.started_at for sweep in sweeps}
    rows = SweepOutcome.objects.visible_to(user).filter(sweep__in=begun).order_by("id")
    told = [
        (row.pop("id"), row.pop("sweep_id"), row.pop("session_id"), row.pop("observed"), result_of(row))
        for row in rows.values("id", "sweep_id", "session_id", "observed", *_FACTS)
    ]
    waiting = {session for _, _, session, _, kind in told if kind == UNDER_WAY}
    receipts = defaultdict(list)
    if waiting:
        later = ContinuityReceipt.objects.visible_to(user).filter(
            session_id__in=waiting, created_at__gte=min(begun.values())
        )
        for session, created_at, kind in later.order_by("created_at").values_list("session_id", "created_at", "kind"):
            receipts[session].append((created_at, kind))
    found: dict[uuid.UUID, list[Result]] = {sweep: [] for sweep in begun}
    for row, sweep, session, observed, kind in told:
        since = (then for at, then in receipts[session] if at >= begun[sweep]) if kind == UNDER_WAY else ()
        found[sweep].append(Result(row, session, observed, next(iter(since), kind)))
    return found
