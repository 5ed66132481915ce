"""API view of background processes."""

from __future__ import annotations

import uuid

from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import SessionApiView
from sessions_app.api.serializers.common import document_responses
from sessions_app.background.api.serializers import BackgroundPolicySerializer, BackgroundSerializer
from sessions_app.background.services import known_processes, set_background_policy


class BackgroundPolicyView(SessionApiView):
    """A session's policy for background processes."""

    @document_responses({200: BackgroundSerializer}, 400, 404, request=BackgroundPolicySerializer)
    def patch(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Set what happens to the session's background processes when it has been idle for long enough to sleep."""
        set_background_policy(self.session.id, self.body(BackgroundPolicySerializer)["policy"])
        return self.show(BackgroundSerializer, known_processes(self.session))
