"""Prompts that wait for a budget as open waits."""

from __future__ import annotations

from typing import Final

from django.db.models import F

from sessions_app.attention.rules import notices
from sessions_app.attention.rules.notices import ATTENTION_KIND_LABELS, AttentionKind
from sessions_app.models import BudgetHold
from sessions_app.usage.rules.budgets import BudgetScope, HoldReason, hold_end_sentence
from sessions_app.waits.rules.open_waits import Actor, WaitDetails
from sessions_app.waits.sources import WaitSource


def _describe(row: BudgetHold) -> WaitDetails:
    actor = Actor.PERSON
    if row.scope == BudgetScope.TEAM or row.reason == HoldReason.RUNNING:
        actor = Actor.CLOCK
    wake_up = f"The prompt is sent, once, as soon as the budget allows it. {hold_end_sentence(row.scope, row.reason)}"
    return WaitDetails(actor, row.sentence, wake_up)


WAIT_SOURCES: Final = (
    WaitSource(
        kind="budget",
        label=ATTENTION_KIND_LABELS[AttentionKind.BUDGET],
        rows=lambda: BudgetHold.objects.filter(ended_at=None),
        describe=_describe,
        since="began_at",
        deadline=F("ends_at"),
        item_prefix=notices.budget_key(""),
    ),
)
