"""What the last restart of the control plane came to, for the sessions of a user's teams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sessions_app.models import RecoverySweep, SweepOutcome, TaskSession
from sessions_app.services import needs
from sessions_app.services.board import with_marks
from sessions_app.services.catalogue import SECRETS
from sessions_app.services.sweep_results import SKIPPED, results_of

NAMED: Final = 8
"""Sessions that are told by name; the rest is counted."""


@dataclass(frozen=True, slots=True)
class LastRestart:
    """The newest sweep of a start of the supervisor."""

    sweep: RecoverySweep
    counts: Mapping[str, int]
    """By ``sweep_results.Result.kind``, without those that nothing came of."""
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
    counts = Counter(one.kind for one in results_of(user, [sweep])[sweep.id])
    if not counts:
        return None
    counts.pop(SKIPPED, None)
    needy = TaskSession.objects.filter(needs.somebody(), id__in=rows.values("session"), task__archived_at=None)
    shown = with_marks(needy.select_related("task", "agent_profile").defer(*SECRETS), user)[: NAMED + 1]
    found = list(shown)
    count = len(found) if len(found) <= NAMED else needy.count()
    return LastRestart(sweep, counts, found[:NAMED], count)
