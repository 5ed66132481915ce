"""The form of a budget."""

from __future__ import annotations

from typing import Any

from django import forms

from sessions_app.usage.rules.budgets import MOST_COST, MOST_TOKENS, Limits


class BudgetForm(forms.Form):
    """The form of a budget; an empty field is no limit, and 0 allows nothing."""

    tokens = forms.IntegerField(min_value=0, max_value=MOST_TOKENS, required=False, label="Tokens")
    cost = forms.FloatField(min_value=0, max_value=MOST_COST, required=False, label="Cost, as agents report it")
    currency = forms.CharField(
        max_length=3, required=False, label="Currency of the cost", help_text="Its code, such as USD."
    )

    @staticmethod
    def initial_of(limits: Limits) -> dict[str, Any]:
        """Return the form's first values for a budget."""
        return {"tokens": limits.tokens, "cost": limits.cost, "currency": limits.currency}

    def limits(self) -> Limits:
        """Return the budget; for valid forms only."""
        values = self.cleaned_data
        return Limits(values["tokens"], values["cost"], values["currency"].strip().upper())
