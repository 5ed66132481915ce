"""Serializers of usage."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from sessions_app.api.serializers.common import MAX_ID, StrictCharField, StrictSerializer, choice_field
from sessions_app.usage.rules.budgets import MOST_COST, MOST_TOKENS, BudgetScope, HoldReason
from sessions_app.usage.services import DEFAULT_PERIOD, PERIODS


class UsageQuerySerializer(serializers.Serializer[Any]):
    """The period of a report, and what it is about."""

    days = serializers.ChoiceField(choices=PERIODS, default=DEFAULT_PERIOD, help_text="The last days, today included.")
    team = serializers.IntegerField(min_value=1, max_value=MAX_ID, required=False)
    task = serializers.UUIDField(required=False)


class CostSerializer(serializers.Serializer[Any]):
    """A cost as agents report it."""

    currency = serializers.CharField()
    amount = serializers.FloatField()


class UsageSerializer(serializers.Serializer[Any]):
    """A sum of turns. It lacks what the turns without figures have used."""

    turns = serializers.IntegerField()
    turns_without_tokens = serializers.IntegerField(help_text="Turns whose tokens are not known.")
    turns_without_cost = serializers.IntegerField(help_text="Turns whose cost is not known.")
    tokens = serializers.IntegerField(help_text="All tokens, with those of a cache.")
    input_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(help_text="Tokens that were read from a cache.")
    costs = serializers.SerializerMethodField(help_text="One entry for each currency; they are never added.")

    def get_costs(self, usage: Any) -> list[dict[str, Any]]:
        """Return the cost in each currency."""
        return [{"currency": currency, "amount": amount} for currency, amount in usage.costs]


class DayUsageSerializer(serializers.Serializer[Any]):
    """The usage of one day."""

    day = serializers.DateField(source="key")
    usage = UsageSerializer()


class UsageGroupSerializer(serializers.Serializer[Any]):
    """The usage of one agent, member or task."""

    id = serializers.CharField(
        source="key", allow_null=True, help_text="Null for unknown ones, and for those beyond the limit."
    )
    name = serializers.CharField()
    usage = UsageSerializer()


class UsageReportSerializer(serializers.Serializer[Any]):
    """What your teams have used in a period."""

    since = serializers.DateField()
    until = serializers.DateField()
    total = UsageSerializer()
    days = DayUsageSerializer(many=True)
    agents = UsageGroupSerializer(many=True)
    members = UsageGroupSerializer(many=True)
    tasks = UsageGroupSerializer(many=True)


class BudgetHoldSerializer(serializers.Serializer[Any]):
    """A budget that holds the next prompt of a session back."""

    scope = choice_field(BudgetScope, help_text="The session's own budget, or the team's for today.")
    reason = choice_field(
        HoldReason,
        help_text="`used_up`, or `running`: turns that run may use up the rest, so the prompt waits for them.",
    )
    limit = serializers.CharField(help_text="The budget, in words.")
    used = serializers.CharField(help_text="What was used of it, in words.")
    since = serializers.DateTimeField()


class BudgetSerializer(StrictSerializer):
    """The budget of a session, or of a team for each day. Null is no limit, 0 allows nothing."""

    tokens = serializers.IntegerField(min_value=0, max_value=MOST_TOKENS, allow_null=True, default=None)
    cost = serializers.FloatField(min_value=0, max_value=MOST_COST, allow_null=True, default=None)
    currency = StrictCharField(
        max_length=3, allow_blank=True, default="", help_text="Of the cost, such as `USD`; only such costs count."
    )
