"""Keys of the API, as their user sees them: everything but the secret."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from sessions_app.api.fields import RowSerializer, Text
from sessions_app.api.words import TOKEN_SCOPES, one_of
from sessions_app.models import ApiToken
from sessions_app.services.api_tokens import LONGEST


class TokenSerializer(RowSerializer):
    """A key; ``last_used_at`` is exact to the hour."""

    scope = one_of(TOKEN_SCOPES, read_only=True)

    class Meta:
        model = ApiToken
        fields = ("id", "name", "scope", "begins_with", "created_at", "expires_at", "last_used_at")
        read_only_fields = fields


class NewToken(serializers.Serializer[Any]):
    """What is said of a key that is wanted."""

    name = Text(max_length=100)
    scope = one_of(TOKEN_SCOPES, default=ApiToken.Scope.READ.value)
    days = serializers.IntegerField(min_value=1, max_value=LONGEST, default=30)


class MadeToken(TokenSerializer):
    """A new key, with its secret: ``key`` is in this answer and nowhere else."""

    key = serializers.SerializerMethodField()

    class Meta:
        model = ApiToken
        fields = (*TokenSerializer.Meta.fields, "key")
        read_only_fields = fields

    def get_key(self, token: ApiToken) -> str:
        """What goes behind ``Authorization: Token``."""
        return str(self.context["key"])
