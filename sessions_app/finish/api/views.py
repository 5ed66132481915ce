"""API views of merges and pushes."""

from __future__ import annotations

import uuid

from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import SessionApiView
from sessions_app.api.serializers.common import document_responses
from sessions_app.finish import services
from sessions_app.finish.api.serializers import (
    FinishIntentSerializer,
    MergePreviewSerializer,
    MergeRequestSerializer,
    StrategyQuerySerializer,
)
from sessions_app.finish.rights import may_finish
from sessions_app.finish.rules.finish import MAX_CONFLICTS, FinishKind


class MergeView(SessionApiView):
    """The merge of a branch into its base."""

    @document_responses({200: MergePreviewSerializer}, 400, 404, parameters=[StrategyQuerySerializer])
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Say what merging the branch into the base of its task would do now. Changes nothing."""
        strategy = self.query(StrategyQuerySerializer)["strategy"]
        state = services.read_merge_state(self.session, strategy)
        uncommitted = services.read_uncommitted(self.session)
        preview = state.preview
        answer = {
            "branch": state.branch,
            "branch_commit": state.branch_commit,
            "target": state.target,
            "target_commit": state.target_commit,
            "ahead": preview.ahead if preview else None,
            "behind": preview.behind if preview else None,
            "conflicts": list(preview.conflicts[:MAX_CONFLICTS]) if preview else [],
            "uncommitted": list(uncommitted.paths) if uncommitted.is_known else None,
            "problem": state.problem,
            "message": state.message,
            "suggested_message": services.suggested_message(self.session, state, strategy),
            "may_merge": may_finish(request.user, self.session.task.team, FinishKind.MERGE),
        }
        return self.show(MergePreviewSerializer, answer)

    @document_responses({202: FinishIntentSerializer}, 400, 404, 409, request=MergeRequestSerializer)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Merge the reviewed commit of the branch into the base of its task, in the background.

        The request names both commits. If one has moved, or the merge has conflicts, nothing is changed. Repeating it
        returns the same merge.
        """
        values = self.body(MergeRequestSerializer)
        intent = services.request_merge(
            self.session,
            request.user,
            strategy=values["strategy"],
            branch_commit=values["branch_commit"],
            target_commit=values["target_commit"],
            message=values["message"],
        )
        return self.show(FinishIntentSerializer, intent, 202)


class FinishIntentListView(SessionApiView):
    """The merges and pushes of a session."""

    @document_responses({200: FinishIntentSerializer(many=True)}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the merges and pushes of the session, the newest first."""
        rows = self.session.finish_intents.select_related("by").order_by("-created_at", "-id")
        return self.list(FinishIntentSerializer, rows)
