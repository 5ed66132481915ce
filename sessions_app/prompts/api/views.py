"""API views of prompts and their files."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import PromptParser, SessionApiView
from sessions_app.api.serializers.common import document_responses
from sessions_app.prompts.api.serializers import (
    PromptAnswerSerializer,
    PromptQuerySerializer,
    PromptRequestSerializer,
    PromptSerializer,
)
from sessions_app.prompts.rules.attachments import AttachedFile
from sessions_app.prompts.services import prompts
from sessions_app.prompts.services.attachments import check_files
from sessions_app.prompts.services.prompts import continue_interrupted
from sessions_app.sessions.services import intents


class PromptListView(SessionApiView):
    """The session's prompts."""

    @document_responses({200: PromptSerializer(many=True)}, 400, 404, parameters=[PromptQuerySerializer])
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the prompts, in the order in which they were created."""
        found = self.session.prompts.filter(**self.query(PromptQuerySerializer))
        return self.list(PromptSerializer, found.select_related("resent_as", "continued_by"))


class PromptDetailView(SessionApiView):
    """One prompt."""

    @document_responses({204: None}, 404, 409)
    def delete(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID, message_id: str) -> Response:
        """Withdraw a queued prompt before it is sent."""
        prompts.withdraw_prompt(self.session.id, message_id)
        return Response(status=204)


class AttachmentContentView(SessionApiView):
    """The content of a prompt's file."""

    @document_responses({200: OpenApiTypes.BINARY}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID, sha256: str) -> HttpResponse:
        """Return the content of a file that a prompt of this session carries."""
        row = get_object_or_404(self.session.attachments, sha256=sha256)
        # Nothing but the four kinds of raster images is shown in the browser, and even those without any rights.
        shown = row.media_type.startswith("image/")
        answer = HttpResponse(bytes(row.content), row.media_type if shown else "application/octet-stream")
        answer["Content-Disposition"] = "inline" if shown else "attachment"
        answer["Content-Security-Policy"] = "default-src 'none'; sandbox"
        answer["X-Content-Type-Options"] = "nosniff"
        answer["Cross-Origin-Resource-Policy"] = "same-origin"
        answer["Cache-Control"] = "private, max-age=86400, immutable"
        return answer


class PromptResendView(SessionApiView):
    """Sending a prompt again."""

    @document_responses({202: PromptSerializer}, 404, 409, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID, message_id: str) -> Response:
        """Send a prompt again as a new prompt, which is returned."""
        return self.show(PromptSerializer, prompts.resend_prompt(self.session.id, message_id, request.user), 202)


class PromptContinueView(SessionApiView):
    """Continuing an interrupted prompt."""

    @document_responses({202: PromptSerializer}, 404, 409, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID, message_id: str) -> Response:
        """Ask the agent to continue interrupted work, with a new prompt, which is returned."""
        return self.show(PromptSerializer, continue_interrupted(self.session.id, message_id, request.user), 202)


class PromptDismissView(SessionApiView):
    """Dismissing a prompt."""

    @document_responses({200: PromptSerializer}, 404, 409, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID, message_id: str) -> Response:
        """Dismiss a held or interrupted prompt without sending anything."""
        return self.show(PromptSerializer, prompts.dismiss_prompt(self.session.id, message_id))


def _checked_files(asked: dict[str, Any]) -> list[AttachedFile]:
    """Take the files out of the values of a request. Raises what ``check_files`` raises."""
    given = asked.pop("attachments", ())
    return check_files((each["name"], each["content"], each["media_type"]) for each in given)


class PromptCreateView(SessionApiView):
    """Prompting a session."""

    parser_classes = [PromptParser]

    @document_responses(
        {202: PromptAnswerSerializer, 200: PromptAnswerSerializer},
        *(400, 404, 409, 413, 415),
        request=PromptRequestSerializer,
    )
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Queue a prompt. Repeating the request with the same ``message_id`` returns the first response, with 200."""
        asked = self.body(PromptRequestSerializer)
        files = _checked_files(asked)
        row, new = intents.queue_prompt(self.session.id, asked["message_id"], asked["text"], request.user, files=files)
        return self.show(PromptAnswerSerializer, row, 202 if new else 200)
