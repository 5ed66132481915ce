"""API views of pushes."""

from __future__ import annotations

import uuid
from dataclasses import asdict
from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import SessionApiView
from sessions_app.api.serializers.common import StrictCharField, document_responses
from sessions_app.finish.api.serializers import FINISH_STATES
from sessions_app.finish.models import FinishIntent
from sessions_app.finish.rights import may_finish
from sessions_app.finish.rules.finish import FinishKind
from sessions_app.remotes import push_requests
from sessions_app.remotes.push_requests import BRANCH, PUSH_TARGETS

_COMMIT_LENGTH = 64


class PushQuerySerializer(serializers.Serializer[Any]):
    """``?target=``: the session's branch, or the base of its task."""

    target = serializers.ChoiceField(choices=PUSH_TARGETS, default=BRANCH)


class PushRequestSerializer(serializers.Serializer[Any]):
    """A push of the commit that was reviewed, while the branch on the server is where it was."""

    target = serializers.ChoiceField(choices=PUSH_TARGETS, default=BRANCH)
    commit = StrictCharField(max_length=_COMMIT_LENGTH, help_text="The reviewed commit.")
    expected = StrictCharField(
        max_length=_COMMIT_LENGTH,
        required=False,
        allow_blank=True,
        allow_null=True,
        default=None,
        help_text="Where the branch on the server is; empty: it does not exist; null: wherever it is, if no commit is "
        "left behind.",
    )
    overwrite = serializers.BooleanField(
        default=False, help_text="Leave commits behind that only the server has. Needs `expected`; not for the base."
    )


class PushPreviewSerializer(serializers.Serializer[Any]):
    """What a push would do now. ``problem`` is empty if it can be done."""

    target = serializers.CharField()
    address = serializers.CharField(allow_blank=True)
    ref = serializers.CharField(allow_blank=True)
    commit = serializers.CharField(allow_blank=True)
    remote_commit = serializers.CharField(
        allow_null=True, allow_blank=True, help_text="Empty: the branch does not exist there; null: not checked."
    )
    overwrites = serializers.BooleanField()
    problem = serializers.CharField(allow_blank=True)
    message = serializers.CharField(allow_blank=True)
    warning = serializers.CharField()
    may_push = serializers.BooleanField()
    pushes = serializers.SerializerMethodField()

    def get_pushes(self, found: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the newest pushes of the session, the newest first."""
        return [dict(PushSerializer(intent).data) for intent in found["recent"]]


class PushSerializer(serializers.ModelSerializer[FinishIntent]):
    """A push: what it is bound to, how far it is, and what the server answered."""

    state = serializers.ChoiceField(choices=FINISH_STATES, read_only=True)
    by = serializers.CharField(source="by.username", default=None, allow_null=True, read_only=True)

    class Meta:
        model = FinishIntent
        fields = (
            "id",
            "state",
            "remote",
            "target_ref",
            "branch_commit",
            "expected_commit",
            "by",
            "created_at",
            "ended_at",
            "error_code",
            "error_message",
            "answer",
        )
        read_only_fields = fields


class PushView(SessionApiView):
    """Pushes of a session's branch, or of its base, to the repository's remote."""

    @document_responses({200: PushPreviewSerializer}, 400, 404, parameters=[PushQuerySerializer])
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Say what a push would do now, and list the newest pushes. Asks the server if you may push."""
        may_push = may_finish(request.user, self.session.task.team, FinishKind.PUSH)
        state = push_requests.read_push_state(self.session, self.query(PushQuerySerializer)["target"], look=may_push)
        more = {"warning": push_requests.CI_WARNING, "may_push": may_push}
        found = {**asdict(state), **more, "recent": push_requests.recent_pushes(self.session)}
        return self.show(PushPreviewSerializer, found)

    @document_responses({202: PushSerializer}, 400, 403, 404, 409, request=PushRequestSerializer)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Push the reviewed commit, in the background, which may start CI there with the secrets that it has.

        If the branch here or on the server is somewhere else, nothing is changed. Repeating the request returns the
        same push.
        """
        intent = push_requests.request_push(self.session, request.user, **self.body(PushRequestSerializer))
        return self.show(PushSerializer, intent, 202)
