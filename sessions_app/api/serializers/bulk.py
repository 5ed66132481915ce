"""The same order for many sessions."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from sessions_app.services.bulk import LIMIT, ORDERS


class BulkRequest(serializers.Serializer[Any]):
    """What is ordered, and of which sessions."""

    action = serializers.ChoiceField(choices=tuple(ORDERS))
    sessions = serializers.ListField(child=serializers.UUIDField(), min_length=1, max_length=LIMIT)


class BulkOutcome(serializers.Serializer[Any]):
    """What came of one session; ``code`` and ``message`` are empty where the order was taken."""

    session_id = serializers.UUIDField()
    ok = serializers.BooleanField()
    code = serializers.CharField(allow_blank=True)
    message = serializers.CharField(allow_blank=True)


class BulkAnswer(serializers.Serializer[Any]):
    """The outcomes in the order of the request."""

    results = BulkOutcome(many=True)
