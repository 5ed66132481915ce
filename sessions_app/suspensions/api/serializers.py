"""Serializers of suspensions."""

from __future__ import annotations

from rest_framework import serializers

from sessions_app.suspensions.rules.suspension import Continuation


class OwnWaitSerializer(serializers.Serializer):  # type: ignore[type-arg]
    """The agent has announced in its open turn that it waits by itself, such as for the end of its limit."""

    since = serializers.DateTimeField(help_text="When the agent announced it.")
    until = serializers.DateTimeField(allow_null=True, help_text="When it goes on; null if it does not say so.")


class SuspensionSerializer(serializers.Serializer):  # type: ignore[type-arg]
    """A usage limit of the agent or an outage of its provider, during which nothing is sent to it."""

    id = serializers.UUIDField()
    reason = serializers.CharField(
        help_text="`usage_limit`, `credit_exhausted`, or the code of a provider's error that outlasts the retries."
    )
    message = serializers.CharField(help_text="The agent’s own message.")
    since = serializers.DateTimeField()
    resets_at = serializers.DateTimeField(
        allow_null=True, help_text="When the limit ends; null if the agent does not say so."
    )
    zone = serializers.CharField(
        help_text="The time zone that the agent named; empty if it named none, and the time is one of this server."
    )
    until = serializers.DateTimeField(
        allow_null=True,
        help_text="When the session goes on by itself: after the end of the limit, or at the next try.",
    )
    continuation = serializers.ChoiceField(
        choices=[kind.value for kind in Continuation],
        help_text="What happens then to the turn that the limit has ended, by the settings of this moment.",
    )


class CutOffTurnSerializer(serializers.Serializer):  # type: ignore[type-arg]
    """The newest turn, which a usage limit has ended that is over; `POST …/go-on/` continues it."""

    suspension_id = serializers.UUIDField()
    message_id = serializers.CharField(help_text="Of the prompt that was refused.")
    reason = serializers.CharField(help_text="As of the suspension.")
    message = serializers.CharField(help_text="The agent’s own message.")
    has_worked = serializers.BooleanField(
        help_text="Whether the agent had used a tool, or has worked on its own since: it is then asked to continue, "
        "else it gets the prompt once more."
    )


class WentOnSerializer(serializers.Serializer):  # type: ignore[type-arg]
    """What happened when a session went on."""

    continuation = serializers.ChoiceField(choices=[kind.value for kind in Continuation])
    message_id = serializers.CharField(
        allow_null=True, source="prompt.message_id", default=None, help_text="Of the prompt that was queued, if any."
    )
