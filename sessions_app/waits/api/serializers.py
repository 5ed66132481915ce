"""Serializers of waits and of the keys that end them."""

from __future__ import annotations

from typing import Any, Final

from django.utils import timezone
from rest_framework import serializers

from sessions_app.api.serializers.common import (
    SizedJSONField,
    StrictCharField,
    choice_field,
)
from sessions_app.kernel.rules.wording import join_alternatives
from sessions_app.prompts.services import TEXT_LIMIT
from sessions_app.waits.reader import wait_kinds
from sessions_app.waits.rules.open_waits import Actor, OpenWaitRecord
from sessions_app.waits.rules.wait_keys import REQUESTED_KINDS

_OFFERED_KINDS: Final = join_alternatives(f"“{kind}”" for kind in REQUESTED_KINDS)
_INVALID_KIND: Final = f"You cannot request a wait of the kind “{{input}}”. Use {_OFFERED_KINDS}."


class NewWaitSerializer(serializers.Serializer[Any]):
    """An external wait of an idle session; without a deadline it never expires."""

    kind = choice_field(REQUESTED_KINDS, error_messages={"invalid_choice": _INVALID_KIND})
    reason = StrictCharField(max_length=2000, allow_blank=True, default="")
    deadline = serializers.DateTimeField(default=None, allow_null=True)


class WaitAgainSerializer(serializers.Serializer[Any]):
    """The new deadline of a wait that ended without an answer; null for the same duration as before."""

    deadline = serializers.DateTimeField(default=None, allow_null=True)


class WaitAnswerSerializer(serializers.Serializer[Any]):
    """A wait. Its key is shown only in this response."""

    run_id = serializers.UUIDField()
    wait_id = serializers.CharField()
    resume_token = serializers.CharField()
    deadline = serializers.DateTimeField(allow_null=True)


class RedemptionSerializer(serializers.Serializer[Any]):
    """The result of the wait that the key belongs to."""

    resume_token = StrictCharField(max_length=512)
    payload = SizedJSONField(default=None, allow_null=True, max_bytes=6 * TEXT_LIMIT)
    idempotency_key = StrictCharField(max_length=128, allow_blank=True, default="")


class RedemptionAnswerSerializer(serializers.Serializer[Any]):
    """The run that continues, and the derived status it had at that time."""

    run_id = serializers.UUIDField()
    status = serializers.CharField()


class OpenWaitQuerySerializer(serializers.Serializer[Any]):
    """Filter of open waits. Each kind of wait is one of the listed names."""

    kind = StrictCharField(max_length=16, allow_blank=True, default="")
    session = serializers.UUIDField(required=False)
    task = serializers.UUIDField(required=False)

    def validate_kind(self, kind: str) -> str:
        """Accept only kinds that exist."""
        if kind and kind not in wait_kinds():
            names = join_alternatives(f"“{name}”" for name in wait_kinds())
            raise serializers.ValidationError(f"There is no wait of the kind “{kind}”. Use {names}.")
        return kind


class OpenWaitSerializer(serializers.Serializer[Any]):
    """An open wait: for what, since when and until when, who is expected to act, and what then happens once."""

    kind = serializers.CharField(help_text="`permission`, `question`, `external`, `tool_result`, `suspension`.")
    id = serializers.CharField()
    session_id = serializers.UUIDField()
    task_id = serializers.UUIDField()
    task_title = serializers.CharField()
    team = serializers.CharField()
    since = serializers.DateTimeField()
    age_seconds = serializers.SerializerMethodField()
    deadline = serializers.DateTimeField(allow_null=True, help_text="When it ends by itself; null: never.")
    owner = serializers.ChoiceField(
        choices=[actor.value for actor in Actor], source="actor", help_text="Who is expected to act."
    )
    owner_name = serializers.CharField(
        source="actor_name", help_text="The user or the team; empty for an outside system and the clock."
    )
    reason = serializers.CharField()
    wake_up = serializers.CharField(help_text="What happens once, when it ends.")
    item_key = serializers.CharField(help_text="The key of its inbox item; empty if it has none.")
    url = serializers.CharField(source="path", help_text="The path of the page where it can be answered or ended.")

    def get_age_seconds(self, wait: OpenWaitRecord) -> int:
        """Return for how long it has been open."""
        return int(wait.age(timezone.now()))
