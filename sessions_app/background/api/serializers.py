"""Serializers of background processes."""

from __future__ import annotations

from rest_framework import serializers

from sessions_app.background.rules.background_work import BackgroundPolicy, BackgroundPolicySource


class BackgroundProcessSerializer(serializers.Serializer):  # type: ignore[type-arg]
    """A process that a turn of the agent has left running."""

    command = serializers.CharField(
        help_text="Its command line, without secrets and cut at 200 characters: words of the agent."
    )
    since = serializers.DateTimeField()
    cpu_seconds = serializers.FloatField(
        allow_null=True, help_text="CPU time that it has taken; null if its agentctl does not report it."
    )


class BackgroundSerializer(serializers.Serializer):  # type: ignore[type-arg]
    """What is known of a session's background processes, and what happens to them."""

    reported_at = serializers.DateTimeField(
        allow_null=True, help_text="When agentctl last reported them; null if that is not known."
    )
    is_current = serializers.BooleanField(
        help_text="Whether that still holds. False: it is unknown what runs now, as nothing has been reported since."
    )
    is_complete = serializers.BooleanField(
        help_text="False: the agent has more processes than are read, so there may be others."
    )
    cpu_seconds = serializers.FloatField(allow_null=True, help_text="CPU time of all of them; null if it is unknown.")
    policy = serializers.ChoiceField(
        choices=[policy.value for policy in BackgroundPolicy],
        help_text="`keep`: they keep the session awake. `end`: the session sleeps when it is idle, which ends them.",
    )
    policy_source = serializers.ChoiceField(
        choices=[source.value for source in BackgroundPolicySource],
        help_text="Where the policy is set: the first of these that sets one decides.",
    )
    has_own_policy = serializers.BooleanField(
        help_text="False: the policy is that of the agent profile or of the deployment."
    )


class BackgroundPolicySerializer(serializers.Serializer):  # type: ignore[type-arg]
    """A session's own policy for background processes."""

    policy = serializers.ChoiceField(
        choices=[policy.value for policy in BackgroundPolicy],
        allow_blank=True,
        help_text="Empty: the policy of the agent profile applies, or else that of the deployment.",
    )
