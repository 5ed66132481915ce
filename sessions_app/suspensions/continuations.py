"""What happens to the turn that a limit has ended, as things stand: read from the rows, decided by the rules."""

from __future__ import annotations

from django.db import models

from executors_app.plugins import UnknownPlugin, agent_type
from sessions_app.kernel.models.session import TaskSession
from sessions_app.kernel.rules.states import PromptKind, RunState, TurnOrigin
from sessions_app.prompts.models import Prompt
from sessions_app.suspensions.models import Suspension, allowed_windows
from sessions_app.suspensions.rules.suspension import Continuation, CutOffTurn, continuation, is_outage
from sessions_app.turns.models import Turn


def refused_prompts(row: Suspension, newest: Turn | None) -> models.QuerySet[Prompt]:
    """Return the prompt of the turn that a limit has ended; none if it was settled meanwhile, or is unknown.

    ``newest`` is the ``newest_working_turn``, or the ``newest_prompted_turn`` where a person decides: an agent that has
    worked on its own since may have continued the turn, so nothing is continued by itself.
    """
    if newest is None or newest.id != row.run_id or newest.state != RunState.FAILED:
        return Prompt.objects.none()  # somebody has sent something else since
    rows = Prompt.objects.filter(session_id=row.session_id, message_id=newest.message_id, resent_as=None)
    return rows.exclude(kind=PromptKind.CHECK)


def newest_working_turn(newest: Turn | None) -> Turn | None:
    """Return the newest turn in which the agent did more than report a limit unasked, given the newest of all."""
    if newest is None or newest.origin != TurnOrigin.AGENT or newest.state != RunState.FAILED:
        return newest
    turns = Turn.objects.filter(session_id=newest.session_id)
    return turns.exclude(origin=TurnOrigin.AGENT, state=RunState.FAILED).order_by("-started_at", "-id").first()


def newest_prompted_turn(newest: Turn | None) -> Turn | None:
    """Return the newest turn of the same session that the agent has not begun itself, given the newest of all."""
    if newest is None or newest.origin != TurnOrigin.AGENT:
        return newest
    prompted = Turn.objects.filter(session_id=newest.session_id).exclude(origin=TurnOrigin.AGENT)
    return prompted.order_by("-started_at", "-id").first()


def decide_continuation(
    agent_type_name: str,
    row: Suspension,
    *,
    has_prompt: bool,
    by_user: bool = False,
    has_worked_since: bool = False,
) -> Continuation:
    """Return what happens to the turn of a suspension at its end, by the settings of this moment.

    ``has_worked_since``: the agent has worked on its own after the turn.
    """
    turn = CutOffTurn(
        has_prompt,
        row.has_worked or has_worked_since,
        _refuses_first(agent_type_name),
        row.windows,
        is_withdrawn=row.withdrawn_at is not None,
        waits_by_itself=row.waits_by_itself,
        is_outage=is_outage(row.reason),
    )
    return continuation(turn, allowed_windows(row.reason), by_user=by_user)


def find_cut_off_turn(session: TaskSession, newest: Turn | None) -> Suspension | None:
    """Return the past suspension whose turn nothing has continued or followed; None if there is none.

    A person may continue it. ``newest`` is the newest turn of the session; one that the agent began itself does not
    settle the turn, unless the agent had announced that it continues it.
    """
    prompted = newest_prompted_turn(newest)
    if prompted is None or prompted.state != RunState.FAILED:
        return None
    row = Suspension.objects.filter(session=session, run=prompted).order_by("-began_at").first()
    if row is None or row.ended_at is None or row.withdrawn_at is not None:
        return None
    if row.waits_by_itself and prompted is not newest:
        return None
    if not refused_prompts(row, prompted).exists():
        return None
    return row


def _refuses_first(name: str) -> bool:
    try:
        return agent_type(name).refuses_first
    except UnknownPlugin:
        return False
