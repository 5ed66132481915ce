"""API views with which uncommitted changes of one file are unstaged or discarded, with their serializers."""

from __future__ import annotations

import uuid
from typing import Any, Final

from rest_framework import serializers
from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import SessionApiView
from sessions_app.api.serializers.common import StrictCharField, StrictSerializer, document_responses
from sessions_app.review.services import show_loss, undo_change

UNDO_ACTIONS: Final = ["unstage", "discard"]


class LossQuerySerializer(serializers.Serializer[Any]):
    """A file, and what is to be done with its uncommitted changes."""

    path = StrictCharField(max_length=4096, trim_whitespace=False)
    action = serializers.ChoiceField(choices=UNDO_ACTIONS)


class LossSerializer(LossQuerySerializer):
    """What would be lost: a sentence, and the lines as a diff. ``version`` names exactly this state of the file."""

    version = serializers.CharField()
    sentence = serializers.CharField()
    lines = serializers.CharField(allow_blank=True)
    truncated = serializers.BooleanField()


class UndoSerializer(StrictSerializer):
    """What is to be done, and the version of which was shown what is lost."""

    path = StrictCharField(max_length=4096, trim_whitespace=False)
    action = serializers.ChoiceField(choices=UNDO_ACTIONS)
    version = StrictCharField(max_length=64)


class UndoneSerializer(LossQuerySerializer):
    """What was done."""


class LossView(SessionApiView):
    """What would be lost."""

    @document_responses({200: LossSerializer}, 400, 404, 409, 503, parameters=[LossQuerySerializer])
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Show what unstaging or discarding the uncommitted changes of a file would lose.

        `unstage` lets the index have the file of the last commit, and leaves the file as it is. `discard` lets the file
        be that of the index, deletes a new file, and ends a conflict with the branch's own side.
        """
        query = self.query(LossQuerySerializer)
        return Response(show_loss(self.session, query["path"], query["action"]))


class UndoView(SessionApiView):
    """Unstaging and discarding."""

    @document_responses({200: UndoneSerializer}, 400, 404, 409, 503, request=UndoSerializer)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Unstage or discard what was shown; 409 `file_changed`, and nothing is done, if the file is another one."""
        values = self.body(UndoSerializer)
        return Response(undo_change(self.session, values["path"], values["action"], values["version"]))
