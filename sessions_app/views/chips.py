"""A session as a line of a list: its state, what else is to be known of it, and whether it needs somebody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sessions_app.domain.agent_programs import NEEDS_PERSON
from sessions_app.domain.states import SessionState, WorkState
from sessions_app.domain.status import DerivedStatus
from sessions_app.models import TaskSession
from sessions_app.services.board import SessionRow
from sessions_app.views.wording import DERIVED, RECONNECTING, WORK_STATES, Word, state_word

_SAID_BY_STATE: Final[Mapping[str, frozenset[str]]] = {
    SessionState.RUNNING: frozenset({DerivedStatus.RUNNING}),
    SessionState.STARTING: frozenset({DerivedStatus.RUNNING, DerivedStatus.IDLE}),
}
"""The derived statuses that a state says already; of all others ``idle``."""
_REST: Final = frozenset({DerivedStatus.IDLE})
_MARKS: Final = (
    ("asks", Word("Asks for permission", "ask")),
    ("doubts", Word("Prompt in doubt", "ask")),
    ("cut_short", Word("Turn cut short", "ask")),
    ("overdue", Word("Prompt waits too long", "ask")),
    ("memory", Word("Memory lost", "ask")),
    ("looks", Word("Needs a look")),
)
_SILENT: Final = Word("Silent for long", "ask")


def reason_word(session: TaskSession) -> Word:
    """Why a session (of ``with_marks``) needs somebody, in a word; else its state."""
    marks = (word for name, word in _MARKS if getattr(session, name))
    return next(marks, state_word(session.state, session.error_code, has_agent=session.has_agent))


def session_chips(row: SessionRow) -> dict[str, Any]:
    """A session with its chips: the state, what the derived status and the work add to it, and the marks."""
    session = row.session
    marks = [word for name, word in _MARKS if getattr(session, name)]
    if session.stalled_since is not None:
        marks.append(_SILENT)
    return {
        "session": session,
        "chips": _chips(row) + marks,
        "needy": bool(marks)
        or getattr(session, "raised", False)
        or (
            session.state == SessionState.ERROR
            and (session.next_restart_at is None or session.error_code in NEEDS_PERSON)
        ),
        "told": f"{state_word(session.state).text}; {DERIVED[DerivedStatus(row.derived)].text}; "
        f"{_work_word(session.work_state).text}",
    }


def _chips(row: SessionRow) -> list[Word]:
    if row.looks_after:
        return [RECONNECTING]
    session, said = row.session, _SAID_BY_STATE.get(row.session.state, _REST)
    # An agent that asks does not work: the mark says what it does, as the session's own page does.
    asks = row.derived == DerivedStatus.WAITING and getattr(session, "asks", False)
    chips = [] if asks else [state_word(session.state, session.error_code, has_agent=session.has_agent)]
    if row.derived not in said and not asks:
        chips.append(DERIVED[DerivedStatus(row.derived)])
    if session.work_state == WorkState.DONE and session.state != SessionState.COMPLETED:
        chips.append(WORK_STATES[WorkState.DONE])
    return chips


def _work_word(state: str) -> Word:
    return WORK_STATES[WorkState(state)] if state in list(WorkState) else Word(state, "bad")
