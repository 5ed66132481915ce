"""What the end of a start teaches of its agent: the third witness of its row, and the memory."""

from __future__ import annotations

from functools import partial
from typing import Final

from executors_app.capability_memory import Judgement, Told, give_a_fresh_chance, judge, recall, remember
from sessions_app.models import Draft

PROBE_FIELDS: Final = ("supports_session_resume", "capability_note")
"""What ``take_in`` sets in the execution's row."""


def take_in(draft: Draft, told: Told) -> str:
    """Set the row to what the agent is to be believed, and remember it at the end; returns the note.

    The row is not saved. One query, and an upsert of the memory where it has changed.
    """
    execution = draft.execution
    if execution is None:
        return ""
    judgement = judge(told, recall(told), draft.at)
    execution.supports_session_resume = judgement.supports_session_resume
    execution.capability_note = judgement.note
    draft.then.append(partial(_remember, draft, told, judgement))
    return judgement.note


def _remember(draft: Draft, told: Told, judgement: Judgement) -> None:
    """The memory's rows are shared by all: locked last, and shortest."""
    remember(told, judgement)
    if judgement.is_new and judgement.supports_session_resume and draft.execution is not None:
        give_a_fresh_chance(draft.session.agent_profile, draft.execution)
