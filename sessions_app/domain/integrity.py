"""What cannot be in the rows of a session: found before anybody acts upon it, said, and left alone.

A damaged row is nobody's reason to stop: the sweep, the loop, the prompts, the status and the pages
pass it over and say what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from executors_app.domain import ExecutorStatus
from sessions_app.domain.recovery_facts import Policy
from sessions_app.domain.states import DesiredState, SessionState, WorkState

DAMAGED_ROW: Final = "damaged_row"
"""Error code and sweep rule of a session whose rows hold what cannot be."""
_ALLOWED_VALUES: Final[Mapping[str, frozenset[str]]] = {
    "state": frozenset(SessionState),
    "desired_state": frozenset(DesiredState),
    "work_state": frozenset(WorkState),
    "policy": frozenset({*Policy, ""}),
    "status": frozenset(ExecutorStatus),
}
_COUNTERS: Final = ("last_seq", "journal_seq", "generation", "start_attempts")


def find_flaws(values: Mapping[str, Any], unreadable: Collection[str]) -> list[str]:
    """What cannot be, in words, one for each column; empty where all is sound.

    ``values`` are columns of the session and its execution by name, those that are not there are not looked at;
    ``unreadable`` are the columns whose secret no key opens, or whose JSON has not the shape it should.
    """
    found = [f"{name} cannot be read" for name in unreadable]
    unknown = (
        name for name, words in _ALLOWED_VALUES.items() if values.get(name) is not None and values[name] not in words
    )
    negative = (name for name in _COUNTERS if (values.get(name) or 0) < 0)
    return found + [f"{name} is {repr(values[name])[:80]}" for name in (*unknown, *negative)]


def flaws_sentence(found: Collection[str]) -> str:
    """The flaws as one sentence for people."""
    return f"The rows of this session are damaged, so nothing is done with it: {'; '.join(found)}." if found else ""
