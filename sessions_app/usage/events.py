"""Budgets of a session: a prompt that has to wait for one, and the end of that."""

from __future__ import annotations

from dataclasses import asdict

from pydantic import Field

from sessions_app.attention.rules import notices
from sessions_app.attention.rules.notices import AttentionKind
from sessions_app.kernel.events.base import Event, Inbox
from sessions_app.kernel.rules.log_event import LogEvent
from sessions_app.kernel.rules.rebuild import SessionRebuild
from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.usage.rules.budgets import BudgetScope, HoldEnd, HoldReason, hold_sentence, limits_from_stored


class BudgetHeld(
    Event,
    name="session.budget.held",
    recorded_by="the supervisor, when it would send the next prompt",
    audited=True,
    raises=(AttentionKind.BUDGET,),
):
    """A budget holds the next prompt back."""

    hold_id: str
    scope: str = Field(description=", ".join(f"`{scope}`" for scope in BudgetScope))
    reason: str = Field(
        description=f"`{HoldReason.USED_UP}`, or `{HoldReason.RUNNING}`: turns that run may use up the rest"
    )
    limit: str = Field(description="the budget, in words")
    used: str = Field(description="what was used of it, in words")

    def timeline_label(self) -> Label:
        """Say which budget."""
        return Label(hold_sentence(self.scope, self.reason, self.limit, self.used), "ask")

    def update_inbox(self, inbox: Inbox) -> None:
        """Raise an item, unless the end of other turns decides it soon."""
        if self.reason != HoldReason.RUNNING:
            inbox.raise_item(notices.budget_notice(self.hold_id, self.scope, self.limit, self.used))


class BudgetReleased(
    Event,
    name="session.budget.released",
    recorded_by="the supervisor, when a prompt may be sent again, or none waits",
    audited=True,
    timeline=Label("No budget holds prompts back any more", "busy"),
):
    """No budget holds prompts back."""

    hold_id: str
    reason: str = Field(description=", ".join(f"`{end}`" for end in HoldEnd))

    def update_inbox(self, inbox: Inbox) -> None:
        """Settle the item about it."""
        inbox.resolve(self.reason, key=notices.budget_key(self.hold_id))


class BudgetChanged(
    Event,
    name="session.budget.changed",
    recorded_by="a user's request",
    timeline=Label("The session’s budget was changed", "off"),
):
    """The session's own budget was changed."""

    tokens: int | None
    cost: float | None
    currency: str
    by: str

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Set the session's own budget. Raises ValueError if it is none."""
        rows.budget = asdict(limits_from_stored(line.payload))
