"""API views of the requests of agents."""

from __future__ import annotations

import uuid
from typing import Any

from rest_framework.response import Response

from sessions_app.accounts.authorization import may_write_session
from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import SessionApiView
from sessions_app.api.pagination import paginate
from sessions_app.api.serializers.common import document_responses
from sessions_app.kernel.rules.states import PermissionState
from sessions_app.models import PermissionRequest
from sessions_app.permissions.api.serializers import (
    PermissionAnswerSerializer,
    PermissionQuerySerializer,
    PermissionSerializer,
)
from sessions_app.permissions.services import answer_permission, permission_keys


class PermissionApiView(SessionApiView):
    """Base class of views of permissions."""

    def serialize_with_keys(self, requests: list[PermissionRequest]) -> Any:
        """Return the permissions as this user may see them."""
        may_answer = may_write_session(self.request.user, self.session)
        context = {"keys": permission_keys(requests), "may_answer": may_answer}
        return PermissionSerializer(requests, many=True, context=context).data


class PermissionListView(PermissionApiView):
    """The permissions that the agent requested."""

    @document_responses({200: PermissionSerializer(many=True)}, 400, 404, parameters=[PermissionQuerySerializer])
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the permissions, oldest first. Users who may answer also see the key for it."""
        permissions = self.session.permissions.filter(**self.query(PermissionQuerySerializer))
        page, paginator = paginate(permissions, self)
        return paginator.get_paginated_response(self.serialize_with_keys(page))


class PermissionAnswerView(PermissionApiView):
    """One permission."""

    @document_responses(
        {202: PermissionSerializer, 200: PermissionSerializer}, 400, 404, 410, request=PermissionAnswerSerializer
    )
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID, permission_id: str) -> Response:
        """Answer a permission or a question.

        Returns 202 while the answer is on its way to the agent, and 200 if the same answer was given before.
        """
        body = self.body(PermissionAnswerSerializer)
        permission = answer_permission(
            self.session.id,
            permission_id,
            body["option_id"],
            body["resume_token"],
            request.user,
            content=body["content"],
        )
        status = 200
        if permission.state == PermissionState.PENDING:
            status = 202
        return Response(self.serialize_with_keys([permission])[0], status=status)
