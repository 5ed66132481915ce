"""Serializers of waits and of the keys that end them."""

from __future__ import annotations

from typing import Any, Final

from rest_framework import serializers

from sessions_app.api.serializers.common import (
    SizedJSONField,
    StrictCharField,
    choice_field,
)
from sessions_app.kernel.rules.wording import join_alternatives
from sessions_app.prompts.services import TEXT_LIMIT
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
