"""API views of review comments and of viewed versions, with their serializers."""

from __future__ import annotations

import uuid
from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import SessionApiView
from sessions_app.api.serializers.common import (
    PROMPT_STATES,
    SizedListField,
    StrictCharField,
    StrictSerializer,
    document_responses,
    values_of,
)
from sessions_app.board.api.views import MemberPermission
from sessions_app.models import ReviewComment
from sessions_app.prompts.api import PromptAnswerSerializer
from sessions_app.review import comments, viewed
from sessions_app.review.rules.comments import (
    MAX_EXCERPT,
    MAX_LINE_NUMBER,
    MAX_PATH,
    MAX_STORED,
    MAX_TEXT,
    Lines,
    Side,
    delivery_sentence,
)

SIDES = values_of(Side)
LINES = values_of(Lines)


class ReviewCommentSerializer(serializers.Serializer[ReviewComment]):
    """A comment on lines of a changed file. It is `pending` until a prompt carries it, and if that was withdrawn."""

    id = serializers.UUIDField()
    author = serializers.CharField(source="author_name")
    path = serializers.CharField()
    side = serializers.ChoiceField(choices=SIDES)
    first_line = serializers.IntegerField()
    last_line = serializers.IntegerField()
    excerpt = serializers.CharField(allow_blank=True)
    version = serializers.CharField(allow_blank=True)
    text = serializers.CharField()
    pending = serializers.BooleanField(source="is_pending")
    own = serializers.SerializerMethodField(help_text="Whether you have written it, so that you can change it.")
    message_id = serializers.CharField(source="sent_with", allow_blank=True)
    prompt_state = serializers.ChoiceField(choices=PROMPT_STATES, allow_null=True)
    delivery = serializers.SerializerMethodField(help_text="What became of it, as a sentence.")
    lines = serializers.SerializerMethodField(help_text="Whether its lines are still what its author saw.")
    created_at = serializers.DateTimeField()

    def get_own(self, row: ReviewComment) -> bool:
        """Return whether the user is the author."""
        return bool(row.author_id == self.context["request"].user.pk)

    def get_delivery(self, row: ReviewComment) -> str:
        """Return the sentence."""
        return delivery_sentence(getattr(row, "prompt_state", None) or "")

    def get_lines(self, row: ReviewComment) -> Lines:
        """Return the result of the comparison."""
        found: Lines = self.context.get("compared", {}).get(row.id, Lines.UNKNOWN)
        return found


class ReviewCommentsSerializer(serializers.Serializer[Any]):
    """The comments that wait, and the newest ones that were sent, the oldest first."""

    comments = ReviewCommentSerializer(many=True)


class NewCommentSerializer(StrictSerializer):
    """A comment to write. Without ``excerpt``, the lines are quoted as they are now."""

    id = serializers.UUIDField(required=False, help_text="Chosen by you, so that the request can be repeated safely.")
    path = StrictCharField(max_length=MAX_PATH, trim_whitespace=False)
    side = serializers.ChoiceField(choices=SIDES, default=Side.NEW.value)
    first_line = serializers.IntegerField(min_value=1, max_value=MAX_LINE_NUMBER)
    last_line = serializers.IntegerField(min_value=1, max_value=MAX_LINE_NUMBER, required=False)
    excerpt = StrictCharField(
        max_length=2 * MAX_EXCERPT,
        allow_blank=True,
        trim_whitespace=False,
        required=False,
        help_text="As you saw them.",
    )
    version = StrictCharField(
        max_length=64, allow_blank=True, default="", help_text="Of the file that you saw, as `review/` names it."
    )
    text = StrictCharField(max_length=MAX_TEXT, trim_whitespace=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the values; a comment is about one line by default."""
        return {"last_line": attrs["first_line"], **attrs}


class CommentTextSerializer(StrictSerializer):
    """The new text of a comment."""

    text = StrictCharField(max_length=MAX_TEXT, trim_whitespace=False)


class SendCommentsSerializer(StrictSerializer):
    """Which prompt carries the comments. ``comments``: those that you have seen; if others wait, nothing is sent."""

    message_id = StrictCharField(max_length=128, trim_whitespace=False)
    comments = SizedListField(child=serializers.UUIDField(), required=False, max_length=MAX_STORED)


class ViewedSerializer(StrictSerializer):
    """A version of a changed file, and whether you have viewed it."""

    version = StrictCharField(max_length=64)
    viewed = serializers.BooleanField()


class ViewedVersionsSerializer(serializers.Serializer[Any]):
    """The versions of changed files that you have viewed, the oldest mark first."""

    versions = serializers.ListField(child=serializers.CharField())


class CommentListView(SessionApiView):
    """The comments on a session's changes."""

    @document_responses({200: ReviewCommentsSerializer}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the comments of all members: those that wait, and the newest ones that were sent.

        `lines` compares the quoted lines with what is there now; `unknown` if that cannot be read.
        """
        rows = comments.list_comments(self.session)
        context = {"request": request, "compared": comments.compare_comments(self.session, rows)}
        return Response(ReviewCommentsSerializer({"comments": rows}, context=context).data)

    @document_responses(
        {201: ReviewCommentSerializer, 200: ReviewCommentSerializer}, 400, 404, 409, 503, request=NewCommentSerializer
    )
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Write a comment. Repeating the request with the same `id` returns the first response, with 200."""
        row, is_new = comments.add_comment(self.session, request.user, **self.body(NewCommentSerializer))
        return self.show(ReviewCommentSerializer, comments.find_comment(self.session, row.id), 201 if is_new else 200)


class CommentView(SessionApiView):
    """One comment."""

    @document_responses({200: ReviewCommentSerializer}, 400, 404, 409, request=CommentTextSerializer)
    def patch(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID, comment_id: uuid.UUID) -> Response:
        """Change the text of a comment of your own that waits."""
        comments.edit_comment(self.session, comment_id, request.user, self.body(CommentTextSerializer)["text"])
        return self.show(ReviewCommentSerializer, comments.find_comment(self.session, comment_id))

    @document_responses({204: None}, 404, 409)
    def delete(
        self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID, comment_id: uuid.UUID
    ) -> Response:
        """Delete a comment that waits."""
        comments.delete_comment(self.session, comment_id)
        return Response(status=204)


class SendCommentsView(SessionApiView):
    """Sending the comments."""

    @document_responses(
        {202: PromptAnswerSerializer, 200: PromptAnswerSerializer}, 400, 404, 409, request=SendCommentsSerializer
    )
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Send all comments that wait as one prompt, which is queued like any other.

        Repeating the request with the same `message_id` returns the first response, with 200.
        """
        values = self.body(SendCommentsSerializer)
        prompt, is_new = comments.send_comments(
            self.session, values["message_id"], request.user, only=values.get("comments")
        )
        return self.show(PromptAnswerSerializer, prompt, 202 if is_new else 200)


class ViewedView(SessionApiView):
    """What a user has viewed of a session's changes."""

    permission_classes = [MemberPermission]

    @document_responses({200: ViewedVersionsSerializer}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the versions of changed files that you have viewed."""
        return Response({"versions": viewed.viewed_versions(self.session, request.user)})

    @document_responses({204: None}, 400, 404, request=ViewedSerializer)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Mark a version of a changed file as viewed, or not; the same for everybody who can see the session."""
        values = self.body(ViewedSerializer)
        viewed.mark_viewed(self.session, request.user, values["version"], viewed=values["viewed"])
        return Response(status=204)
