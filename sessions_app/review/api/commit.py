"""API view of commits of selected files, with its serializers."""

from __future__ import annotations

import uuid
from typing import Any, Final

from rest_framework import serializers
from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import SessionApiView
from sessions_app.api.serializers.common import (
    SizedListField,
    StrictCharField,
    StrictSerializer,
    document_responses,
)
from sessions_app.review.services import commit_selected, list_selectable
from sessions_app.workspace.api.serializers import CommittedSerializer

CONTENTS: Final = ["staged", "file"]
MAX_SELECTED: Final = 2000


class SelectableFileSerializer(serializers.Serializer[Any]):
    """One uncommitted change; a partly staged file has two.

    `content` is what would be committed: what is `staged`, or the `file` as it is. `version` names exactly that, and is
    empty for a change that cannot be committed; then `problem` says why.
    """

    path = serializers.CharField()
    old_path = serializers.CharField(allow_blank=True, help_text="Of a renamed file.")
    content = serializers.ChoiceField(choices=CONTENTS)
    change = serializers.CharField(help_text="For example `modified`, `added`, `deleted` or `renamed`.")
    version = serializers.CharField(allow_blank=True)
    problem = serializers.CharField(allow_blank=True)


class SelectableSerializer(serializers.Serializer[Any]):
    """What can be committed. `truncated` if there are more changes than are listed."""

    branch = serializers.CharField(allow_null=True)
    head = serializers.CharField(allow_null=True)
    operation = serializers.CharField(
        allow_null=True, help_text="What git is in the middle of, such as `merge`: then nothing can be selected."
    )
    conflicts = serializers.IntegerField(help_text="Files in conflict: with any, nothing can be committed.")
    files = SelectableFileSerializer(many=True)
    truncated = serializers.BooleanField()


class SelectedFileSerializer(StrictSerializer):
    """A change that was selected, as it was listed."""

    path = StrictCharField(max_length=4096, trim_whitespace=False)
    content = serializers.ChoiceField(choices=CONTENTS)
    version = StrictCharField(max_length=64)


class SelectedCommitSerializer(StrictSerializer):
    """A commit to create: its message, and exactly the changes that it has."""

    message = StrictCharField(max_length=64 * 1024, trim_whitespace=False)
    files = SizedListField(child=SelectedFileSerializer(), min_length=1, max_length=MAX_SELECTED)


class SelectedCommitView(SessionApiView):
    """Committing selected files."""

    @document_responses({200: SelectableSerializer}, 404, 409, 503)
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the uncommitted changes that can be committed, each with its version."""
        return Response(list_selectable(self.session))

    @document_responses({200: CommittedSerializer}, 400, 404, 409, 503, request=SelectedCommitSerializer)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Commit exactly the changes that were listed, with you as the author; everything else stays as it is.

        409 `file_changed` names those that have changed since, and nothing is committed. No hook runs, and nothing is
        signed.
        """
        values = self.body(SelectedCommitSerializer)
        return Response(commit_selected(self.session, request.user, values["message"], values["files"]))
