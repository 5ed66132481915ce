"""The keys of the API that somebody has; a key has no say in it."""

from __future__ import annotations

import uuid

from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.api.authentication import ByLoginAlone
from sessions_app.api.base import ApiView
from sessions_app.api.serializers.common import described
from sessions_app.api.serializers.tokens import MadeToken, NewToken, TokenSerializer
from sessions_app.services import api_tokens


class Tokens(ApiView):
    """All of one's own."""

    permission_classes = [ByLoginAlone]

    @described({200: TokenSerializer(many=True)}, 403)
    def get(self, request: Request) -> Response:
        """List the own tokens that were not revoked, newest first; never their keys."""
        return self.list(TokenSerializer, api_tokens.tokens_of(request.user))

    @described({201: MadeToken}, 400, 409, request=NewToken)
    def post(self, request: Request) -> Response:
        """Make a token. Its key is in this answer alone: keep it where nobody else looks."""
        asked = self.body(NewToken)
        made, key = api_tokens.make(request.user, asked["name"], asked["scope"], asked["days"])
        return Response(MadeToken(made, context={"key": key}).data, status=201, headers={"Cache-Control": "no-store"})


class TokenDetail(ApiView):
    """One of them."""

    permission_classes = [ByLoginAlone]

    @described({204: None}, 404)
    def delete(self, request: Request, token_id: uuid.UUID) -> Response:
        """Revoke a token: it opens nothing from now on, and sockets that it has opened are closed within seconds."""
        api_tokens.revoke(request.user, token_id)
        return Response(status=204)
