"""What the last restart of the control plane came to, for the sessions of a user's teams."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sessions_app.models import ContinuityReceipt, RecoverySweep, SweepOutcome, TaskSession
from sessions_app.services import needs
from sessions_app.services.board import with_marks
from sessions_app.services.catalogue import SECRETS

NAMED: Final = 8
"""Sessions that are told by name; the rest is counted."""
STARTS: Final = ("resume", "start_workspace")
"""Decisions whose receipt comes after the sweep."""


@dataclass(frozen=True, slots=True)
class LastRestart:
    """The newest sweep of a start of the supervisor."""

    sweep: RecoverySweep
    counts: Mapping[str, int]
    """By kind of receipt; ``under_way``: ordered, and not ended yet. Sessions without either are not counted."""
    needy: list[TaskSession]
    """Those of them that a person has to look at, at most ``NAMED``, with their marks."""
    needy_count: int

    @property
    def total(self) -> int:
        """How many sessions were taken up again, or could not be."""
        return sum(self.counts.values())


def last_restart(user: Any) -> LastRestart | None:
    """None before the first restart, and where it concerned none of the user's sessions; five queries at most."""
    sweep = RecoverySweep.objects.filter(trigger="boot").first()
    if sweep is None:
        return None
    rows = SweepOutcome.objects.visible_to(user).filter(sweep=sweep)
    told = list(rows.values_list("session_id", "agent_action", "receipt_kind"))
    if not told:
        return None
    later = receipts_since(user, sweep, [one for one, action, kind in told if action in STARTS and not kind])
    counts = Counter(_came_to(one, action, kind, later) for one, action, kind in told)
    counts.pop("", None)
    needy = TaskSession.objects.filter(needs.somebody(), id__in=rows.values("session"), task__archived_at=None)
    shown = with_marks(needy.select_related("task", "agent_profile").defer(*SECRETS), user)[: NAMED + 1]
    found = list(shown)
    count = len(found) if len(found) <= NAMED else needy.count()
    return LastRestart(sweep, counts, found[:NAMED], count)


def _came_to(session_id: uuid.UUID, action: str, kind: str, later: Mapping[uuid.UUID, str]) -> str:
    if kind:
        return kind
    if action == "reattach":
        return "reattached"
    return later.get(session_id, "under_way") if action in STARTS else ""


def receipts_since(user: Any, sweep: RecoverySweep, ids: list[uuid.UUID]) -> dict[uuid.UUID, str]:
    """A start that a sweep orders ends after it: the kind of the first receipt since, by session."""
    found = ContinuityReceipt.objects.visible_to(user).filter(session_id__in=ids, created_at__gte=sweep.started_at)
    return dict(found.order_by("-created_at").values_list("session_id", "kind"))
