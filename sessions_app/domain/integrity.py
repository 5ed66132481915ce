"""Find impossible values in the rows of a session before anything acts on them.

A damaged row stops nothing else: the sweep, the main loop, prompts, status and pages skip it and report what is
wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from executors_app.domain import ExecutorStatus
from sessions_app.domain.recovery_facts import Policy
from sessions_app.domain.states import DesiredState, SessionState, WorkState

DAMAGED_ROW: Final = "damaged_row"
"""Error code, and sweep rule, of a session whose rows contain impossible values."""
_ALLOWED_VALUES: Final[Mapping[str, frozenset[str]]] = {
    "state": frozenset(SessionState),
    "desired_state": frozenset(DesiredState),
    "work_state": frozenset(WorkState),
    "policy": frozenset({*Policy, ""}),
    "status": frozenset(ExecutorStatus),
}
_COUNTERS: Final = ("last_seq", "journal_seq", "generation", "start_attempts")


def find_flaws(values: Mapping[str, Any], unreadable: Collection[str]) -> list[str]:
    """Describe each impossible value, one text per column; empty if the rows are sound.

    ``values`` maps column names of the session and its execution to values; columns that are missing are not checked.
    ``unreadable`` names columns whose secret no key decrypts, or whose JSON has the wrong shape.
    """
    found = [f"{name} cannot be read" for name in unreadable]
    unknown = (
        name for name, words in _ALLOWED_VALUES.items() if values.get(name) is not None and values[name] not in words
    )
    negative = (name for name in _COUNTERS if (values.get(name) or 0) < 0)
    return found + [f"{name} is {repr(values[name])[:80]}" for name in (*unknown, *negative)]


def flaws_sentence(found: Collection[str]) -> str:
    """Return the flaws as one sentence for people; empty if there are none."""
    return f"This session’s record is damaged, so Kandev leaves it alone: {'; '.join(found)}." if found else ""
