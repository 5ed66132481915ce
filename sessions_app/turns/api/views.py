"""API views of turns and waits."""

from __future__ import annotations

import uuid

from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import SessionApiView
from sessions_app.api.serializers.common import document_responses
from sessions_app.turns.api.serializers import RunSerializer


class RunListView(SessionApiView):
    """The session's turns and waits."""

    @document_responses({200: RunSerializer(many=True)}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the runs, oldest first."""
        return self.list(RunSerializer, self.session.runs.all())
