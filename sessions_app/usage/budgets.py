"""Change budgets, and keep the holds of budgets up to date: end those that allow the next prompt again."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.contrib.auth.models import Group, User
from django.db.models import Exists, OuterRef
from django.utils import timezone

from sessions_app.accounts.authorization import may_manage
from sessions_app.kernel import wakeups
from sessions_app.kernel.guarded_jobs import guard_job
from sessions_app.kernel.rules.states import TERMINAL_STATES, DesiredState, PromptState
from sessions_app.kernel.services.errors import Invalid, ReadOnly
from sessions_app.models import BudgetHold, Prompt, TaskSession, UsageBudget, session_transaction
from sessions_app.usage.events import BudgetChanged
from sessions_app.usage.models import budgets_of_next_prompts, end_hold, end_of_day, is_held_by_budget
from sessions_app.usage.rules.budgets import HoldEnd, Limits, limits_problem

PAGE: Final = 500
"""Holds that one pass reads at most."""
BATCH: Final = 100
"""Holds that one pass updates at most; at the end of a day the others follow within seconds."""

_QUEUED: Final = Prompt.objects.filter(state=PromptState.QUEUED)
_HAS_PROMPT: Final = Exists(_QUEUED.filter(session_id=OuterRef("id")))


def budget_of_team(team: Group) -> Limits:
    """Return what a team may use on one day."""
    return _limits(UsageBudget.objects.filter(team=team).first())


def budget_of_session(session_id: uuid.UUID) -> Limits:
    """Return what a session may use in all."""
    return _limits(UsageBudget.objects.filter(session_id=session_id).first())


def _limits(row: UsageBudget | None) -> Limits:
    return row.limits if row is not None else Limits()


def set_team_budget(team: Group, limits: Limits, by: User) -> None:
    """Set a team's budget. Raises Invalid, and ReadOnly unless ``by`` is staff or an admin of the team."""
    _validate(limits)
    if not may_manage(by, team):
        raise ReadOnly("Only staff and the team’s admins can set its budget.")
    UsageBudget.objects.update_or_create(team=team, defaults=_columns(limits, by))
    wakeups.notify_on_commit()


def set_session_budget(session_id: uuid.UUID, limits: Limits, by: User) -> None:
    """Set a session's own budget. Raises Invalid."""
    _validate(limits)
    with session_transaction(session_id) as transaction:
        if budget_of_session(session_id) == limits:
            return
        UsageBudget.objects.update_or_create(session=transaction.session, defaults=_columns(limits, by))
        changed = BudgetChanged(tokens=limits.tokens, cost=limits.cost, currency=limits.currency, by=by.get_username())
        transaction.record_event(changed)


def _columns(limits: Limits, by: User) -> dict[str, Any]:
    return {"tokens": limits.tokens, "cost": limits.cost, "currency": limits.currency, "updated_by_id": by.pk}


def _validate(limits: Limits) -> None:
    if problem := limits_problem(limits):
        raise Invalid(problem.sentence, field=problem.field)


@dataclass(frozen=True, slots=True)
class HoldPass:
    """What one pass over the open holds has done."""

    updated: int
    """How many have ended, or were replaced."""
    after: uuid.UUID | None
    """The session after which the next pass goes on; None: this pass has reached the end."""


def update_holds(after: uuid.UUID | None = None) -> HoldPass:
    """End holds that are over, and renew those that last for another reason, of the sessions that follow ``after``.

    Most holds last, so a pass reads many, in a constant number of queries, and locks only sessions whose hold changes.
    """
    rows = BudgetHold.objects.filter(ended_at=None).order_by("session_id")
    if after is not None:
        rows = rows.filter(session_id__gt=after)
    page = list(rows[:PAGE])
    outdated = _outdated(page)
    _renew_days(set(page) - set(outdated))
    updated = sum(guard_job(row.session_id, "its budget", _update, row.id, row.session_id) for row in outdated[:BATCH])
    if len(outdated) > BATCH:
        return HoldPass(updated, outdated[BATCH - 1].session_id)
    return HoldPass(updated, page[-1].session_id if len(page) == PAGE else None)


def next_check() -> datetime | None:
    """Return when the day ends on which budgets hold something back; None if none does."""
    if not BudgetHold.objects.filter(ended_at=None).exists():
        return None
    return end_of_day()


def _outdated(rows: Sequence[BudgetHold]) -> list[BudgetHold]:
    """Return the holds that do not last as they are, read without a lock."""
    found = TaskSession.objects.filter(id__in=[row.session_id for row in rows])
    sessions = {each.id: each for each in found.only("task_id", "state", "desired_state").annotate(waits=_HAS_PROMPT)}
    # Release 1.0 has deleted these sessions, and does not know of holds.
    orphans = [row.id for row in rows if row.session_id not in sessions]
    if orphans:
        BudgetHold.objects.filter(id__in=orphans).delete()
    holds = budgets_of_next_prompts(list(sessions.values()))
    outdated = []
    for row in rows:
        session = sessions.get(row.session_id)
        if session is None:
            continue
        hold = holds.get(row.session_id)
        if _is_obsolete(session, has_prompt=session.waits) or hold is None or not row.is_about(hold):
            outdated.append(row)
    return outdated


def _renew_days(rows: Iterable[BudgetHold]) -> None:
    """Let holds of teams' budgets that have outlasted their day end with the present one.

    A budget of 0 allows nothing on any day, and one may be used up again before its holds are read.
    """
    now = timezone.now()
    past = [row.id for row in rows if row.ends_at is not None and row.ends_at <= now]
    if past:
        BudgetHold.objects.filter(id__in=past, ended_at=None).update(ends_at=end_of_day())


def _is_obsolete(session: TaskSession, *, has_prompt: bool) -> bool:
    """Whether nothing is to be sent, whatever the budget is."""
    return session.desired_state == DesiredState.STOPPED or session.state in TERMINAL_STATES or not has_prompt


def _update(hold_id: uuid.UUID, session_id: uuid.UUID) -> bool:
    """Bring a hold up to date; return False if it has ended already."""
    with session_transaction(session_id) as transaction:
        row = BudgetHold.objects.filter(id=hold_id, ended_at=None).first()
        if row is None:
            return False
        has_prompt = _QUEUED.filter(session_id=session_id).exists()
        if _is_obsolete(transaction.session, has_prompt=has_prompt):
            return end_hold(transaction, row, HoldEnd.OBSOLETE)
        is_held_by_budget(transaction)
    return True
