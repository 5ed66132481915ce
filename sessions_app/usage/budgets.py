"""Change budgets, and keep the holds of budgets up to date: end those that allow the next prompt again."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Final

from django.contrib.auth.models import Group, User

from sessions_app.accounts.authorization import may_manage
from sessions_app.kernel import wakeups
from sessions_app.kernel.guarded_jobs import guard_job
from sessions_app.kernel.rules.states import TERMINAL_STATES, DesiredState, PromptState
from sessions_app.kernel.services.errors import Invalid, ReadOnly
from sessions_app.models import BudgetHold, TaskSession, UsageBudget, session_transaction
from sessions_app.usage.events import BudgetChanged
from sessions_app.usage.models import budget_of_next_prompt, end_hold, end_of_day, is_held_by_budget
from sessions_app.usage.rules.budgets import HoldEnd, Limits, limits_problem

BATCH: Final = 100
"""Holds that one pass updates at most, the oldest first; at the end of a day the others follow within seconds."""


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


def update_holds() -> int:
    """End the holds that are over, and renew those that last for another reason; return how many."""
    rows = list(BudgetHold.objects.filter(ended_at=None))
    outdated = [row for row in rows if _is_outdated(row)]
    return sum(guard_job(row.session_id, "its budget", _update, row.id, row.session_id) for row in outdated[:BATCH])


def next_check() -> datetime | None:
    """Return when the day ends on which budgets hold something back; None if none does."""
    if not BudgetHold.objects.filter(ended_at=None).exists():
        return None
    return end_of_day()


def _is_outdated(row: BudgetHold) -> bool:
    """Whether a hold does not last as it is, read without a lock: most holds do."""
    session = TaskSession.objects.filter(id=row.session_id).first()
    if session is None:
        # Release 1.0 has deleted the session, and does not know of this row.
        BudgetHold.objects.filter(id=row.id).delete()
        return False
    if _is_obsolete(session):
        return True
    hold = budget_of_next_prompt(session)
    return hold is None or not row.is_about(hold)


def _is_obsolete(session: TaskSession) -> bool:
    """Whether nothing is to be sent, whatever the budget is."""
    if session.desired_state == DesiredState.STOPPED or session.state in TERMINAL_STATES:
        return True
    return not session.prompts.filter(state=PromptState.QUEUED).exists()


def _update(hold_id: uuid.UUID, session_id: uuid.UUID) -> bool:
    """Bring a hold up to date; return False if it has ended already."""
    with session_transaction(session_id) as transaction:
        row = BudgetHold.objects.filter(id=hold_id, ended_at=None).first()
        if row is None:
            return False
        if _is_obsolete(transaction.session):
            return end_hold(transaction, row, HoldEnd.OBSOLETE)
        is_held_by_budget(transaction)
    return True
