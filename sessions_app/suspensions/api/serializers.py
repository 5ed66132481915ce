"""Serializers of suspensions."""

from __future__ import annotations

from rest_framework import serializers

from sessions_app.suspensions.rules.suspension import Continuation


class SuspensionSerializer(serializers.Serializer):  # type: ignore[type-arg]
    """A usage limit of the agent, during which nothing is sent to it."""

    id = serializers.UUIDField()
    reason = serializers.CharField(help_text="The code of the turn that the limit has ended: `usage_limit`.")
    message = serializers.CharField(help_text="What the agent said.")
    since = serializers.DateTimeField()
    resets_at = serializers.DateTimeField(
        allow_null=True, help_text="When the limit ends; null if the agent does not say so."
    )
    zone = serializers.CharField(
        help_text="The time zone that the agent named; empty if it named none, and the time is one of this server."
    )
    until = serializers.DateTimeField(
        allow_null=True, help_text="When the session goes on by itself, a little later than the limit ends."
    )


class WentOnSerializer(serializers.Serializer):  # type: ignore[type-arg]
    """What happened when a session went on."""

    continuation = serializers.ChoiceField(choices=[kind.value for kind in Continuation])
    message_id = serializers.CharField(
        allow_null=True, source="prompt.message_id", default=None, help_text="Of the prompt that was queued, if any."
    )
