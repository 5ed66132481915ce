"""API views of messages, events, receipts, runs, prompts, permissions and waits."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from django.db.models import OuterRef, Subquery, Sum
from django.db.models.functions import Coalesce, Length
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from rest_framework.permissions import AllowAny
from rest_framework.response import Response

from sessions_app.accounts.api.authentication import count_wrong_token
from sessions_app.accounts.authorization import may_write_session
from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import ApiView, SessionApiView
from sessions_app.api.pagination import SequencePagination, paginate
from sessions_app.api.serializers.common import document_responses
from sessions_app.api.serializers.conversation import (
    EventSerializer,
    MessageQuerySerializer,
    MessageSerializer,
    NewWaitSerializer,
    PermissionAnswerSerializer,
    PermissionQuerySerializer,
    PermissionSerializer,
    PromptQuerySerializer,
    PromptSerializer,
    ReceiptSerializer,
    RedemptionAnswerSerializer,
    RedemptionSerializer,
    RunSerializer,
    WaitAgainSerializer,
    WaitAnswerSerializer,
)
from sessions_app.domain.states import PermissionState
from sessions_app.domain.wait_tokens import WaitKind
from sessions_app.models import MessagePart, PermissionRequest, text_pieces, texts_of
from sessions_app.services import prompts, waits
from sessions_app.services.errors import TokenInvalid
from sessions_app.services.prompts import continue_interrupted
from sessions_app.services.waits import answer_permission, permission_tokens

MAX_TEXT: Final = 4 << 20
"""Characters of one text that a response contains."""


class MessagePagination(SequencePagination):
    """Smaller pages, because messages may be long."""

    default_limit = 100
    max_limit = 500

    def size_of(self, row: Any) -> int:
        """Return the bytes that a message counts for, with its text."""
        text_length: int = row.text_length
        return super().size_of(row) + min(text_length, MAX_TEXT)


class MessageListView(SessionApiView):
    """The conversation."""

    pagination_class = MessagePagination

    @document_responses({200: MessageSerializer(many=True)}, 400, 404, parameters=[MessageQuerySerializer])
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the messages after ``after``, with their text.

        A text is cut after 4,194,304 characters. To read the rest, ask for its message again (``limit=1``, with
        ``after`` one less than its ``seq``), and set ``text_from`` to the characters that you have, until you have
        ``text_length`` of them.
        """
        parts = MessagePart.objects.filter(message=OuterRef("pk")).order_by().values("message")
        lengths = parts.annotate(length=Sum(Length("text"))).values("length")
        rows = self.session.messages.annotate(text_length=Coalesce(Subquery(lengths), 0))
        text_from = self.query(MessageQuerySerializer).get("text_from", 0)
        found, paginator = paginate(rows, self)
        shown = MessageSerializer(found, many=True, context={"texts": _texts_of_page(found, text_from)}).data
        return paginator.get_paginated_response(shown)


def _texts_of_page(messages: list[Any], text_from: int) -> Mapping[uuid.UUID, str]:
    """Return the texts of the messages, up to MAX_TEXT characters of each; of the first one, those at ``text_from``."""
    if not text_from and all(message.text_length <= MAX_TEXT for message in messages):
        return texts_of(messages)
    begins = {message.id: text_from for message in messages[:1]}
    return text_pieces(messages, begins, MAX_TEXT)


class EventListView(SessionApiView):
    """The log."""

    pagination_class = SequencePagination

    @document_responses({200: EventSerializer(many=True)}, 400, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the events after ``after``."""
        return self.list(EventSerializer, self.session.events.all(), session=self.session)


class ReceiptListView(SessionApiView):
    """The session's continuity receipts."""

    @document_responses({200: ReceiptSerializer(many=True)}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the continuity receipts, newest first."""
        return self.list(ReceiptSerializer, self.session.receipts.all())


class RunListView(SessionApiView):
    """The session's turns and waits."""

    @document_responses({200: RunSerializer(many=True)}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the runs, oldest first."""
        return self.list(RunSerializer, self.session.runs.all())


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


class PermissionApiView(SessionApiView):
    """Base class of views of permissions."""

    def serialize_with_tokens(self, asked: list[PermissionRequest]) -> Any:
        """Return the permissions as this user may see them."""
        may_answer = may_write_session(self.request.user, self.session)
        context = {"tokens": permission_tokens(asked), "may_answer": may_answer}
        return PermissionSerializer(asked, many=True, context=context).data


class PermissionListView(PermissionApiView):
    """The permissions that the agent requested."""

    @document_responses({200: PermissionSerializer(many=True)}, 400, 404, parameters=[PermissionQuerySerializer])
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the permissions, oldest first. Users who may answer also see the key for it."""
        found, paginator = paginate(self.session.permissions.filter(**self.query(PermissionQuerySerializer)), self)
        return paginator.get_paginated_response(self.serialize_with_tokens(found))


class PermissionAnswerView(PermissionApiView):
    """One permission."""

    @document_responses(
        {202: PermissionSerializer, 200: PermissionSerializer}, 400, 404, 410, request=PermissionAnswerSerializer
    )
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID, permission_id: str) -> Response:
        """Answer a permission or a question.

        Returns 202 while the answer is on its way to the agent, and 200 if the same answer was given before.
        """
        given = self.body(PermissionAnswerSerializer)
        asked = answer_permission(
            self.session.id,
            permission_id,
            given["option_id"],
            given["resume_token"],
            request.user,
            content=given["content"],
        )
        return Response(
            self.serialize_with_tokens([asked])[0], status=202 if asked.state == PermissionState.PENDING else 200
        )


class WaitCreateView(SessionApiView):
    """External waits."""

    @document_responses({201: WaitAnswerSerializer}, 400, 404, 409, request=NewWaitSerializer)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Let an idle session wait for an external result. Repeating this returns the same wait with a new key."""
        asked = self.body(NewWaitSerializer)
        kind = WaitKind(asked["kind"])
        opened = waits.open_wait(self.session.id, asked["reason"], asked["deadline"], request.user, kind)
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
        given = self.body(RedemptionSerializer)
        try:
            told = waits.resume_wait(given["resume_token"], given["payload"], given["idempotency_key"])
        except TokenInvalid:
            count_wrong_token(request)
            raise
        return self.show(RedemptionAnswerSerializer, told)
