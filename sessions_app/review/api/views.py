"""API views of the review: what a session's branch has changed since it left its base."""

from __future__ import annotations

import uuid

from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import SessionApiView
from sessions_app.api.serializers.common import document_responses
from sessions_app.review.api.serializers import (
    BranchChangesSerializer,
    BranchHunksSerializer,
    ChangesQuerySerializer,
    HunksQuerySerializer,
)
from sessions_app.review.services import list_branch_changes, read_branch_hunks


class BranchChangesView(SessionApiView):
    """The changed files of a branch."""

    @document_responses({200: BranchChangesSerializer}, 400, 404, 409, 503, parameters=[ChangesQuerySerializer])
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List the files that the branch has changed since it left its base, committed or not, or a part of it.

        A part is what is not committed, one of its commits, or one turn of the agent. A turn lies between two snapshots
        of the workspace, so what others changed meanwhile is part of it.
        Without a usable base, only uncommitted changes are listed, and `base.problem` says why. `version` names
        exactly this change of a file: it stays the same as long as both sides do.
        """
        query = self._checked(ChangesQuerySerializer, request.query_params, {})
        return Response(list_branch_changes(self.session, query["of"], kept=query["kept"]))


class BranchHunksView(SessionApiView):
    """The hunks of changed files."""

    @document_responses({200: BranchHunksSerializer}, 400, 404, 409, 503, parameters=[HunksQuerySerializer])
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Return the hunks of up to 20 changed files, with as many lines around them as requested.

        Binary and large files have none. Of a file in conflict, they are those to the branch's own side.
        """
        query = self._checked(HunksQuerySerializer, request.query_params, {})
        paths, around = query["path"], query["lines_around"]
        return Response(read_branch_hunks(self.session, paths, around, query["of"], kept=query["kept"]))
