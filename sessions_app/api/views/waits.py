"""Waits for the outside: opened by a member of the team, ended by whoever has the key."""

from __future__ import annotations

import uuid
from typing import Any

from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import SimpleRateThrottle

from sessions_app.api.base import ApiView, SessionView
from sessions_app.api.serializers.common import described
from sessions_app.api.serializers.conversation import NewWait, Redemption, RedemptionAnswer, WaitAnswer
from sessions_app.services import waits
from sessions_app.services.errors import TokenInvalid


class Waits(SessionView):
    """Waits for the outside."""

    @described({201: WaitAnswer}, 400, 404, 409, request=NewWait)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Let a session at rest wait for the outside; asked again it is the same wait with another key."""
        asked = self.body(NewWait)
        opened = waits.open_wait(self.session.id, asked["reason"], asked["deadline"], request.user)
        answer = self.show(WaitAnswer, opened, 201)
        answer["Cache-Control"] = "no-store"
        return answer


class WrongKeys(SimpleRateThrottle):
    """So many wrong keys an address may try; right ones, used or not, cost nothing."""

    scope = "wrong_keys"
    rate = "30/min"

    def get_cache_key(self, request: Request, view: Any) -> str:
        """By the address that has called us, whatever it says of itself."""
        return f"wrong_keys:{request.META.get('REMOTE_ADDR', '')}"

    def throttle_success(self) -> bool:
        """Nothing is counted yet."""
        return True

    def count(self, request: Request, view: Any) -> None:
        """A key was wrong."""
        if self.allow_request(request, view):
            super().throttle_success()


class RunsResume(ApiView):
    """The end of a wait; the key is the only credential."""

    authentication_classes = []
    permission_classes = [AllowAny]
    throttle_classes = [WrongKeys]

    @described({200: RedemptionAnswer}, 400, 403, 409, 410, 429, request=Redemption, auth=[])
    def post(self, request: Request) -> Response:
        """End a wait with what has come, which the agent is told; the same ``idempotency_key``: the first answer."""
        given = self.body(Redemption)
        try:
            told = waits.resume(given["resume_token"], given["payload"], given["idempotency_key"])
        except TokenInvalid:
            WrongKeys().count(request, self)
            raise
        return self.show(RedemptionAnswer, told)
