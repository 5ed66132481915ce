"""What happens to the turn that a limit has ended, as things stand: read from the rows, decided by the rules."""

from __future__ import annotations

from django.db import models

from executors_app.plugins import UnknownPlugin, agent_type
from sessions_app.kernel.models.session import TaskSession
from sessions_app.kernel.rules.states import PromptKind, RunState
from sessions_app.prompts.models import Prompt
from sessions_app.suspensions.models import Suspension, allowed_windows
from sessions_app.suspensions.rules.suspension import Continuation, CutOffTurn, continuation, is_outage
from sessions_app.turns.models import Turn


def refused_prompts(row: Suspension, newest: Turn | None) -> models.QuerySet[Prompt]:
    """Return the prompt of the turn that a limit has ended; none if it was settled meanwhile, or is unknown.

    ``newest`` is the newest turn of the session.
    """
    if newest is None or newest.id != row.run_id or newest.state != RunState.FAILED:
        return Prompt.objects.none()  # somebody has sent something else since
    rows = Prompt.objects.filter(session_id=row.session_id, message_id=newest.message_id, resent_as=None)
    return rows.exclude(kind=PromptKind.CHECK)


def decide_continuation(
    session: TaskSession, row: Suspension, *, has_prompt: bool, by_user: bool = False
) -> Continuation:
    """Return what happens to the turn of a suspension at its end, by the settings of this moment."""
    refuses_first = _refuses_first(session.agent_profile.agent_type)
    turn = CutOffTurn(
        has_prompt,
        row.has_worked,
        refuses_first,
        row.windows,
        is_withdrawn=row.withdrawn_at is not None,
        waits_by_itself=row.waits_by_itself,
        is_outage=is_outage(row.reason),
    )
    return continuation(turn, allowed_windows(row.reason), by_user=by_user)


def find_cut_off_turn(session: TaskSession, newest: Turn | None) -> Suspension | None:
    """Return the past suspension whose turn nothing has continued or followed; None if there is none.

    A person may continue it. ``newest`` is the newest turn of the session.
    """
    if newest is None or newest.state != RunState.FAILED:
        return None
    row = Suspension.objects.filter(session=session, run=newest).order_by("-began_at").first()
    if row is None or row.ended_at is None or row.withdrawn_at is not None:
        return None
    if not refused_prompts(row, newest).exists():
        return None
    return row


def _refuses_first(name: str) -> bool:
    try:
        return agent_type(name).refuses_first
    except UnknownPlugin:
        return False
