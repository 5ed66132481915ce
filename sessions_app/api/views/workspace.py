"""The workspace of a session: files and git, from its agentctl, with and without an agent."""

from __future__ import annotations

import uuid
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.api.base import SessionView, TeamRights
from sessions_app.api.parsing import FileParser, StrictJSONParser
from sessions_app.api.serializers.common import ContentQuery, FolderQuery, KeptQuery, PathQuery, described
from sessions_app.api.serializers.workspace import (
    CommitRequest,
    Committed,
    FileContent,
    Folder,
    GitDiff,
    GitLog,
    GitStatus,
    LogQuery,
    WriteRequest,
    Written,
)
from sessions_app.domain.plain_text import visible
from sessions_app.services import rights, workspace
from sessions_app.services.highlighting import highlighted_file

IF_MATCH = OpenApiParameter(
    "If-Match",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The `hash` of what was read, or `*` for whatever is there; without it only a new file is made.",
)


class OperateRights(BasePermission):
    """Where agents are not isolated, whoever changes files may take the machine: staff, or a trusted team (rule 39)."""

    message = "Files are written here by staff, and by teams with the permission operate_unisolated."

    def has_permission(self, request: Request, view: Any) -> bool:
        """Whether this request may go on, once it is known that its user may write."""
        return request.method in SAFE_METHODS or rights.may_operate(request.user, view.session)


class Files(SessionView):
    """Directories of the workspace."""

    @described({200: Folder}, 400, 404, 503, parameters=[FolderQuery])
    def get(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List a directory of the workspace."""
        asked = self.query(FolderQuery)
        if asked["kept"]:
            return Response(workspace.KeptWorkspace(self.session).list_files(asked["path"]))
        return Response(workspace.list_files(self.session, asked["path"]))


class Content(SessionView):
    """Files of the workspace."""

    permission_classes = [TeamRights, OperateRights]
    parser_classes = [StrictJSONParser, FileParser]

    @described({200: FileContent}, 400, 404, 503, parameters=[ContentQuery])
    def get(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Show a file of the workspace."""
        asked = self.query(ContentQuery)
        of = workspace.KeptWorkspace(self.session) if asked["kept"] else None
        file = of.read_file(asked["path"]) if of else workspace.read_file(self.session, asked["path"])
        return Response({**file, "html": _coloured(file)} if asked["highlight"] and not file["binary"] else file)

    @described(
        {200: Written, 201: Written},
        *(400, 404, 409, 413, 503),
        request={"application/json": WriteRequest, "application/octet-stream": OpenApiTypes.BINARY},
        parameters=[PathQuery, IF_MATCH],
    )
    def put(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Write a file of the workspace, over what was read and nothing else."""
        path = self.query(PathQuery)["path"]
        content = self.body(WriteRequest)["content"]
        written = workspace.write_file(self.session, path, content, request.headers.get("If-Match"))
        return Response(written, status=201 if written.get("created") else 200)


def _coloured(file: dict[str, Any]) -> str:
    return highlighted_file(visible(file["content"]), file["path"])


class Status(SessionView):
    """What is not committed."""

    @described({200: GitStatus}, 400, 404, 409, 503, parameters=[KeptQuery])
    def get(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Show the state of the working tree."""
        if self.query(KeptQuery)["kept"]:
            return Response(workspace.KeptWorkspace(self.session).git_status())
        return Response(workspace.git_status(self.session))


class Diff(SessionView):
    """What has changed."""

    @described({200: GitDiff}, 400, 404, 409, 503, parameters=[FolderQuery])
    def get(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Show the differences of all files, or of one."""
        asked = self.query(FolderQuery)
        if asked["kept"]:
            return Response(workspace.KeptWorkspace(self.session).git_diff(asked["path"]))
        return Response(workspace.git_diff(self.session, asked["path"]))


class Log(SessionView):
    """What was committed."""

    @described({200: GitLog}, 400, 404, 409, 503, parameters=[LogQuery])
    def get(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List commits, newest first."""
        asked = self.query(LogQuery)
        if asked.pop("kept"):
            return Response(workspace.KeptWorkspace(self.session).git_log(asked["limit"], asked["skip"]))
        return Response(workspace.git_log(self.session, **asked))


class Commit(SessionView):
    """Committing."""

    @described({200: Committed}, 400, 404, 409, 503, request=CommitRequest)
    def post(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Commit what the workspace holds, in the name of whoever asks."""
        return Response(workspace.git_commit(self.session, request.user, **self.body(CommitRequest)))
