"""The ledger of prompts, and the permissions that the agent asks for."""

from __future__ import annotations

import uuid
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.api.base import SessionView
from sessions_app.api.paging import paged
from sessions_app.api.serializers.common import described
from sessions_app.api.serializers.conversation import (
    PermissionAnswer,
    PermissionQuery,
    PermissionSerializer,
    PromptQuery,
    PromptSerializer,
)
from sessions_app.models import PermissionRequest
from sessions_app.services import prompts
from sessions_app.services.continuation import continue_interrupted
from sessions_app.services.permissions import answer
from sessions_app.services.rights import may_write_session
from sessions_app.services.tokens import of_permissions


class Prompts(SessionView):
    """The ledger."""

    @described({200: PromptSerializer(many=True)}, 400, 404, parameters=[PromptQuery])
    def get(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the prompts in the order they were asked."""
        found = self.session.prompts.filter(**self.query(PromptQuery))
        return self.list(PromptSerializer, found.select_related("resent_as", "continued_by"))


class PromptDetail(SessionView):
    """One prompt of the ledger."""

    @described({204: None}, 404, 409)
    def delete(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID, message_id: str) -> Response:
        """Take a queued prompt back before it is sent."""
        prompts.withdraw(self.session.id, message_id)
        return Response(status=204)


class Resend(SessionView):
    """Sending a prompt again."""

    @described({202: PromptSerializer}, 404, 409, request=None)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID, message_id: str) -> Response:
        """Ask the same again with a new prompt, which is the answer."""
        return self.show(PromptSerializer, prompts.resend(self.session.id, message_id, request.user), 202)


class Continue(SessionView):
    """Going on with an interrupted prompt."""

    @described({202: PromptSerializer}, 404, 409, request=None)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID, message_id: str) -> Response:
        """Tell the agent to go on where it was interrupted, with a new prompt, which is the answer."""
        return self.show(PromptSerializer, continue_interrupted(self.session.id, message_id, request.user), 202)


class Dismiss(SessionView):
    """Settling a prompt without sending anything."""

    @described({200: PromptSerializer}, 404, 409, request=None)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID, message_id: str) -> Response:
        """Settle a held or interrupted prompt."""
        return self.show(PromptSerializer, prompts.dismiss(self.session.id, message_id))


class PermissionView(SessionView):
    """Permissions, each with what is known of its key."""

    def with_keys(self, asked: list[PermissionRequest]) -> Any:
        """As the API shows them to this user."""
        may_answer = may_write_session(self.request.user, self.session)
        context = {"tokens": of_permissions(asked), "may_answer": may_answer}
        return PermissionSerializer(asked, many=True, context=context).data


class Permissions(PermissionView):
    """What the agent asked before acting."""

    @described({200: PermissionSerializer(many=True)}, 400, 404, parameters=[PermissionQuery])
    def get(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the permissions, oldest first; those who may answer are shown the key with which they do."""
        found, paginator = paged(self.session.permissions.filter(**self.query(PermissionQuery)), self)
        return paginator.get_paginated_response(self.with_keys(found))


class PermissionDetail(PermissionView):
    """One permission."""

    @described({202: PermissionSerializer, 200: PermissionSerializer}, 400, 404, 410, request=PermissionAnswer)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID, permission_id: str) -> Response:
        """Answer a permission; 202 while the answer is on its way to the agent, 200 when it was given before."""
        given = self.body(PermissionAnswer)
        asked = answer(self.session.id, permission_id, given["option_id"], given["resume_token"], request.user)
        return Response(self.with_keys([asked])[0], status=202 if asked.state == "pending" else 200)
