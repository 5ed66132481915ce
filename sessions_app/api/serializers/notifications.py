"""What users and teams choose to be told outside the pages."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from sessions_app.api.fields import KnownFieldsOnly, RowSerializer, TeamField, Text
from sessions_app.api.words import one_of
from sessions_app.models import Delivery, NotificationSettings, Webhook
from sessions_app.models.notification import DIGESTS, KINDS


class Kinds(serializers.ListField):
    """Kinds of things that may need somebody."""

    child = one_of(KINDS)


class SettingsSerializer(KnownFieldsOnly, RowSerializer):
    """What the user is told by e-mail, and how often at most (minutes)."""

    kinds = Kinds(required=False)
    every = serializers.ChoiceField(choices=[minutes for minutes, _ in DIGESTS], required=False)
    minimum_share = serializers.IntegerField(min_value=0, max_value=100, required=False)

    class Meta:
        model = NotificationSettings
        fields = ("email", "kinds", "only_mine", "every", "minimum_share")


class WebhookSerializer(RowSerializer):
    """A webhook, without its secret. ``team`` null: the user's own."""

    kinds = Kinds(read_only=True)
    team_name = serializers.CharField(source="team.name", default=None, read_only=True, allow_null=True)

    class Meta:
        model = Webhook
        fields = ("id", "url", "kinds", "enabled", "team", "team_name", "created_at")
        read_only_fields = fields


class MadeWebhook(WebhookSerializer):
    """A webhook with its secret, which no other answer shows."""

    secret = serializers.CharField(read_only=True)

    class Meta:
        model = Webhook
        fields = (*WebhookSerializer.Meta.fields, "secret")
        read_only_fields = fields


class NewWebhook(serializers.Serializer[Any]):
    """Where it leads, what it is told, and whose it is; without a team the user's own."""

    url = Text(max_length=500)
    kinds = Kinds(required=False)
    team = TeamField(required=False)


class WebhookChange(KnownFieldsOnly):
    """What can be changed; what is left out stays."""

    url = Text(max_length=500, required=False)
    kinds = Kinds(required=False)
    enabled = serializers.BooleanField(required=False)


class DeliverySerializer(RowSerializer):
    """One telling, and how far it got."""

    class Meta:
        model = Delivery
        fields = (
            *("id", "channel", "webhook", "is_test", "state", "attempts", "next_attempt_at"),
            *("last_error", "created_at", "finished_at"),
        )
        read_only_fields = fields
