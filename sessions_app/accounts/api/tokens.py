"""API tokens of the current user: list, create and revoke."""

from __future__ import annotations

import uuid
from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from sessions_app.accounts import credentials
from sessions_app.accounts.api.authentication import LoginSessionPermission
from sessions_app.accounts.credentials import MAX_LIFETIME_DAYS
from sessions_app.accounts.models import ApiToken
from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import ApiView
from sessions_app.api.serializers.common import (
    TOKEN_SCOPES,
    StrictCharField,
    StrictModelSerializer,
    choice_field,
    document_responses,
)


class TokenSerializer(StrictModelSerializer):
    """An API token; ``last_used_at`` is exact to the hour."""

    scope = choice_field(TOKEN_SCOPES, read_only=True)

    class Meta:
        model = ApiToken
        fields = ("id", "name", "scope", "begins_with", "created_at", "expires_at", "last_used_at")
        read_only_fields = fields


class NewTokenSerializer(serializers.Serializer[Any]):
    """The properties of a token to create."""

    name = StrictCharField(max_length=100)
    scope = choice_field(TOKEN_SCOPES, default=ApiToken.Scope.READ.value)
    days = serializers.IntegerField(min_value=1, max_value=MAX_LIFETIME_DAYS, default=30)


class MadeTokenSerializer(TokenSerializer):
    """A new token with its secret: ``key`` is only in this response."""

    key = serializers.SerializerMethodField()

    class Meta:
        model = ApiToken
        fields = (*TokenSerializer.Meta.fields, "key")
        read_only_fields = fields

    def get_key(self, token: ApiToken) -> str:
        """The value to send after ``Authorization: Token``."""
        return str(self.context["key"])


class ApiTokenListCreateView(ApiView):
    """The API tokens of the current user."""

    permission_classes = [LoginSessionPermission]

    @document_responses({200: TokenSerializer(many=True)}, 403)
    def get(self, request: UserRequest) -> Response:
        """List your tokens that were not revoked, newest first, without their keys."""
        return self.list(TokenSerializer, credentials.list_tokens(request.user))

    @document_responses({201: MadeTokenSerializer}, 400, 409, request=NewTokenSerializer)
    def post(self, request: UserRequest) -> Response:
        """Create a token. Its key is only in this response: store it where no one else can read it."""
        body = self.body(NewTokenSerializer)
        token, key = credentials.create_token(request.user, body["name"], body["scope"], body["days"])
        values = MadeTokenSerializer(token, context={"key": key}).data
        return Response(values, status=201, headers={"Cache-Control": "no-store"})


class ApiTokenDeleteView(ApiView):
    """One API token of the current user."""

    permission_classes = [LoginSessionPermission]

    @document_responses({204: None}, 404)
    def delete(self, request: UserRequest, token_id: uuid.UUID) -> Response:
        """Revoke a token: it gives no access from now on, and sockets that it has opened are closed within seconds."""
        credentials.revoke_token(request.user, token_id)
        return Response(status=204)
