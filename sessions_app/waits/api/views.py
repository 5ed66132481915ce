"""API views of waits and of the keys that end them."""

from __future__ import annotations

import uuid

from rest_framework.permissions import AllowAny
from rest_framework.response import Response

from sessions_app.accounts.api.authentication import count_wrong_token
from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import ApiView, SessionApiView
from sessions_app.api.pagination import paginate
from sessions_app.api.serializers.common import document_responses
from sessions_app.kernel.services.errors import TokenInvalid
from sessions_app.prompts.api import PromptSerializer
from sessions_app.waits import services as waits
from sessions_app.waits.api.serializers import (
    NewWaitSerializer,
    OpenWaitQuerySerializer,
    OpenWaitSerializer,
    RedemptionAnswerSerializer,
    RedemptionSerializer,
    WaitAgainSerializer,
    WaitAnswerSerializer,
)
from sessions_app.waits.reader import list_waits, load_waits
from sessions_app.waits.rules.wait_keys import WaitKind


class OpenWaitListView(ApiView):
    """The open waits of all kinds."""

    @document_responses({200: OpenWaitSerializer(many=True)}, 400, parameters=[OpenWaitQuerySerializer])
    def get(self, request: UserRequest) -> Response:
        """List what sessions of your teams wait for now, the oldest first."""
        query = self.query(OpenWaitQuerySerializer)
        columns = {"session": "session", "task": "session__task"}
        given = {column: query[name] for name, column in columns.items() if name in query}
        listed, paginator = paginate(list_waits(request.user, kind=query["kind"], **given), self)
        return paginator.get_paginated_response(OpenWaitSerializer(load_waits(listed), many=True).data)


class WaitCreateView(SessionApiView):
    """External waits."""

    @document_responses({201: WaitAnswerSerializer}, 400, 404, 409, request=NewWaitSerializer)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Let an idle session wait for an external result. Repeating this returns the same wait with a new key."""
        body = self.body(NewWaitSerializer)
        kind = WaitKind(body["kind"])
        opened = waits.open_wait(self.session.id, body["reason"], body["deadline"], request.user, kind)
        return _wait_response(self, opened)


class WaitAgainView(SessionApiView):
    """Restarting a wait that ended without an answer."""

    @document_responses({201: WaitAnswerSerializer}, 400, 404, 409, request=WaitAgainSerializer)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID, wait_id: str) -> Response:
        """Restart a wait that ended without an answer, with a new key."""
        deadline = self.body(WaitAgainSerializer)["deadline"]
        return _wait_response(self, waits.restart_wait(self.session.id, wait_id, request.user, deadline))


class WaitContinueView(SessionApiView):
    """Continuing without the result of a wait."""

    @document_responses({202: PromptSerializer}, 404, 409, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID, wait_id: str) -> Response:
        """Ask the agent to continue without the result, with a new prompt, which is returned."""
        return self.show(PromptSerializer, waits.continue_without_answer(self.session.id, wait_id, request.user), 202)


def _wait_response(view: SessionApiView, opened: waits.OpenWait) -> Response:
    answer = view.show(WaitAnswerSerializer, opened, 201)
    answer["Cache-Control"] = "no-store"
    return answer


class RunResumeView(ApiView):
    """Answering a wait; the key is the only credential."""

    authentication_classes = []
    permission_classes = [AllowAny]

    @document_responses(
        {200: RedemptionAnswerSerializer}, 400, 403, 409, 410, 429, request=RedemptionSerializer, auth=[]
    )
    def post(self, request: UserRequest) -> Response:
        """End a wait with a result, which is sent to the agent.

        Repeating the request with the same ``idempotency_key`` returns the first response.
        """
        body = self.body(RedemptionSerializer)
        try:
            answer = waits.resume_wait(body["resume_token"], body["payload"], body["idempotency_key"])
        except TokenInvalid:
            count_wrong_token(request)
            raise
        return self.show(RedemptionAnswerSerializer, answer)
