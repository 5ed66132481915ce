"""Waits for the outside: opened by a member of the team, ended by whoever has the key."""

from __future__ import annotations

import uuid

from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.api.authentication import count_wrong_key
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


class RunsResume(ApiView):
    """The end of a wait; the key is the only credential."""

    authentication_classes = []
    permission_classes = [AllowAny]

    @described({200: RedemptionAnswer}, 400, 403, 409, 410, 429, request=Redemption, auth=[])
    def post(self, request: Request) -> Response:
        """End a wait with what has come, which the agent is told; the same ``idempotency_key``: the first answer."""
        given = self.body(Redemption)
        try:
            told = waits.resume(given["resume_token"], given["payload"], given["idempotency_key"])
        except TokenInvalid:
            count_wrong_key(request)
            raise
        return self.show(RedemptionAnswer, told)
