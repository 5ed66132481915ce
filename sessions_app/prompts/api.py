"""The REST API of prompts and their files: what a request may contain, what an answer shows, and the views."""

from __future__ import annotations

import base64
import uuid
from typing import Any, Final

from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from rest_framework import serializers
from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import MAX_PROMPT_BODY, PromptParser, SessionApiView
from sessions_app.api.serializers.common import (
    MAX_ID,
    PROMPT_STATES,
    SizedListField,
    StrictCharField,
    StrictModelSerializer,
    StrictSerializer,
    choice_field,
    document_responses,
)
from sessions_app.kernel.rules.states import PromptState
from sessions_app.models import Prompt
from sessions_app.prompts import services as prompts
from sessions_app.prompts.rules.attachments import MAX_FILES, AttachedFile
from sessions_app.prompts.services import TEXT_LIMIT, check_files, continue_interrupted


class AttachmentSerializer(serializers.Serializer[Any]):
    """A file of a prompt; ``attachments/{sha256}/`` has its content."""

    name = serializers.CharField()
    media_type = serializers.CharField()
    size = serializers.IntegerField()
    sha256 = serializers.CharField()


class PromptSerializer(StrictModelSerializer):
    """A prompt and its delivery state."""

    version = serializers.IntegerField(
        source="text_version",
        read_only=True,
        help_text="Counts the versions of the text; an edit names the one it saw.",
    )
    place = serializers.IntegerField(
        source="queue_place",
        read_only=True,
        help_text="Of two queued prompts of users, the one with the smaller number is first.",
    )
    attachments = AttachmentSerializer(many=True, read_only=True)
    resent_as = serializers.CharField(source="resent_as.message_id", read_only=True, default=None, allow_null=True)
    continued_by = serializers.CharField(
        source="continued_by.message_id", read_only=True, default=None, allow_null=True
    )

    class Meta:
        model = Prompt
        fields = (
            *("message_id", "kind", "state", "text", "version", "place", "steered_into", "missed_turn", "of_workflow"),
            *("attachments", "by", "edited_by", "resent_as", "continued_by", "created_at", "updated_at"),
        )
        read_only_fields = fields


class NewAttachmentSerializer(StrictSerializer):
    """A file of a prompt. Its content decides its type; ``media_type`` is only compared with it."""

    name = StrictCharField(max_length=1000)
    content = StrictCharField(
        allow_blank=True, trim_whitespace=False, max_length=MAX_PROMPT_BODY, help_text="The content in base64."
    )
    media_type = StrictCharField(max_length=100, allow_blank=True, default="")

    def validate_content(self, value: str) -> bytes:
        """Return the content."""
        try:
            return base64.b64decode(value, validate=True)
        except ValueError as error:
            raise serializers.ValidationError("This is not base64.") from error


class TextPromptSerializer(StrictSerializer):
    """A prompt without files, as a socket sends it."""

    message_id = StrictCharField(max_length=128, trim_whitespace=False)
    text = StrictCharField(trim_whitespace=False, max_length=TEXT_LIMIT)


class PromptRequestSerializer(TextPromptSerializer):
    """A prompt to send. ``message_id`` is chosen by the client, so that the request can be repeated safely."""

    attachments = SizedListField(child=NewAttachmentSerializer(), required=False, max_length=MAX_FILES)
    deliver = choice_field(
        ("queue", "now"),
        default="queue",
        help_text="`now` hands it to the turn that is running, where the agent takes it (`can_steer` of the status).",
    )


_CHANGES: Final = ("text", "position", "before", "after")


class PromptChangeSerializer(StrictSerializer):
    """One change of a queued prompt: its text, with the ``version`` that was seen, or its place in the queue."""

    text = StrictCharField(trim_whitespace=False, max_length=TEXT_LIMIT, required=False)
    version = serializers.IntegerField(min_value=1, max_value=MAX_ID, required=False)
    position = serializers.IntegerField(
        min_value=1, max_value=MAX_ID, required=False, help_text="Among the queued prompts of users, from 1."
    )
    before = StrictCharField(max_length=128, trim_whitespace=False, required=False, help_text="A message_id.")
    after = StrictCharField(max_length=128, trim_whitespace=False, required=False, help_text="A message_id.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Require exactly one change."""
        if sum(name in attrs for name in _CHANGES) != 1:
            raise serializers.ValidationError(f"Expected exactly one of {', '.join(_CHANGES)}.")
        if ("text" in attrs) != ("version" in attrs):
            raise serializers.ValidationError("text and version belong together.")
        return attrs


class PromptAnswerSerializer(serializers.Serializer[Prompt]):
    """The response to a prompt that was accepted; repeating the request returns the same response."""

    message_id = serializers.CharField()
    session_id = serializers.UUIDField()
    kind = serializers.CharField()
    state = serializers.SerializerMethodField()
    created_at = serializers.DateTimeField()

    def get_state(self, prompt: Prompt) -> str:
        """Return *queued*, the state in which every prompt starts; ``prompts/`` has its current state."""
        return PromptState.QUEUED.value


class PromptQuerySerializer(serializers.Serializer[Any]):
    """Filter of prompts by state; all of them if it is omitted."""

    state = choice_field(PROMPT_STATES, required=False)


class PromptListView(SessionApiView):
    """The session's prompts."""

    @document_responses({200: PromptSerializer(many=True)}, 400, 404, parameters=[PromptQuerySerializer])
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the prompts, in the order in which they were created."""
        found = self.session.prompts.filter(**self.query(PromptQuerySerializer))
        return self.list(PromptSerializer, found.select_related("resent_as", "continued_by"))


class PromptDetailView(SessionApiView):
    """One prompt."""

    parser_classes = [PromptParser]

    @document_responses({200: PromptSerializer}, 400, 404, 409, 413, request=PromptChangeSerializer)
    def patch(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID, message_id: str) -> Response:
        """Edit the text of a queued prompt, or move it; 409 `prompt_not_queued` once it was sent.

        A text is saved only over the `version` that its editor has seen, else 409 `prompt_changed`.
        """
        changes, session = self.body(PromptChangeSerializer), self.session.id
        if "text" in changes:
            row = prompts.edit_prompt(session, message_id, changes["text"], request.user, version=changes["version"])
        elif "position" in changes:
            row = prompts.move_to_position(session, message_id, changes["position"], request.user)
        elif "before" in changes:
            row = prompts.move_next_to(session, message_id, changes["before"], request.user, after=False)
        else:
            row = prompts.move_next_to(session, message_id, changes["after"], request.user, after=True)
        return self.show(PromptSerializer, row)

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
        media_type, disposition = "application/octet-stream", "attachment"
        if row.media_type.startswith("image/"):
            media_type, disposition = row.media_type, "inline"
        answer = HttpResponse(bytes(row.content), media_type)
        answer["Content-Disposition"] = disposition
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


class PromptSendNowView(SessionApiView):
    """Handing a prompt to the running turn."""

    @document_responses({200: PromptSerializer}, 404, 409, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID, message_id: str) -> Response:
        """Hand a queued prompt to the turn that is running; 409 `not_steerable` if the agent takes none there.

        If the turn ends before the agent has taken it, it stays in the queue.
        """
        return self.show(PromptSerializer, prompts.send_now(self.session.id, message_id))


class PromptDismissView(SessionApiView):
    """Dismissing a prompt."""

    @document_responses({200: PromptSerializer}, 404, 409, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID, message_id: str) -> Response:
        """Dismiss a held or interrupted prompt without sending anything."""
        return self.show(PromptSerializer, prompts.dismiss_prompt(self.session.id, message_id))


def parse_files(values: dict[str, Any]) -> list[AttachedFile]:
    """Take the files out of the values of a request. Raises what ``check_files`` raises."""
    files = values.pop("attachments", ())
    return check_files((each["name"], each["content"], each["media_type"]) for each in files)


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
        values = self.body(PromptRequestSerializer)
        message_id, text, files = values["message_id"], values["text"], parse_files(values)
        now = values["deliver"] == "now"
        row, is_new = prompts.queue_prompt(self.session.id, message_id, text, request.user, files=files, now=now)
        if is_new:
            return self.show(PromptAnswerSerializer, row, 202)
        return self.show(PromptAnswerSerializer, row)
