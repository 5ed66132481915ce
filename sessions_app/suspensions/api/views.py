"""API view of suspensions."""

from __future__ import annotations

import uuid

from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import SessionApiView
from sessions_app.api.serializers.common import document_responses
from sessions_app.suspensions.api.serializers import WentOnSerializer
from sessions_app.suspensions.services import go_on_now


class GoOnView(SessionApiView):
    """Going on before a usage limit ends, or after it."""

    @document_responses({202: WentOnSerializer}, 404, 409, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Continue the turn that a usage limit has ended, with a new prompt: now, or after the end of the limit.

        A session that is suspended goes on at once.
        """
        return self.show(WentOnSerializer, go_on_now(self.session.id, request.user), 202)
