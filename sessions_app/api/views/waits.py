"""Waits for the outside: opened by a member of the team, ended by whoever has the key."""

from __future__ import annotations

import uuid

from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.api.authentication import count_wrong_key
from sessions_app.api.base import ApiView, SessionView
from sessions_app.api.serializers.common import described
from sessions_app.api.serializers.conversation import (
    NewWait,
    PromptSerializer,
    Redemption,
    RedemptionAnswer,
    WaitAgain,
    WaitAnswer,
)
from sessions_app.domain.tokens import WaitKind
from sessions_app.services import waits
from sessions_app.services.errors import TokenInvalid


class Waits(SessionView):
    """Waits for the outside."""

    @described({201: WaitAnswer}, 400, 404, 409, request=NewWait)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Let a session at rest wait for something outside; asked again it is the same wait with another key."""
        asked = self.body(NewWait)
        kind = WaitKind(asked["kind"])
        opened = waits.open_wait(self.session.id, asked["reason"], asked["deadline"], request.user, kind)
        return _with_key(self, opened)


class WaitsAgain(SessionView):
    """A wait that ended without an answer, begun anew."""

    @described({201: WaitAnswer}, 400, 404, 409, request=WaitAgain)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID, wait_id: str) -> Response:
        """Wait again for what has not come, with a new key."""
        deadline = self.body(WaitAgain)["deadline"]
        return _with_key(self, waits.wait_again(self.session.id, wait_id, request.user, deadline))


class WaitsContinue(SessionView):
    """Going on without what was waited for."""

    @described({202: PromptSerializer}, 404, 409, request=None)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID, wait_id: str) -> Response:
        """Tell the agent to go on without what has not come, with a new prompt, which is the answer."""
        return self.show(PromptSerializer, waits.continue_without(self.session.id, wait_id, request.user), 202)


def _with_key(view: SessionView, opened: waits.OpenWait) -> Response:
    answer = view.show(WaitAnswer, opened, 201)
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
