"""API views of a session's workspace: files and git, read from agentctl or from the stored copy."""

from __future__ import annotations

import uuid
from typing import Any, cast

from django.contrib.auth.models import User
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.response import Response

from executors_app.repositories.recovery_refs import (
    list_saved_directory,
    read_saved_content,
    saved_diff,
    saved_log,
    saved_status,
    search_saved_files,
)
from sessions_app.accounts import authorization
from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import FileParser, SessionApiView, StrictJSONParser, TeamPermission
from sessions_app.api.serializers.common import (
    ContentQuerySerializer,
    FolderQuerySerializer,
    KeptQuerySerializer,
    PathQuerySerializer,
    document_responses,
)
from sessions_app.redaction.visible_text import make_visible
from sessions_app.rendering.services import highlight_workspace_file
from sessions_app.workspace.api.serializers import (
    CommitRequestSerializer,
    CommittedSerializer,
    FileContentSerializer,
    FileSearchSerializer,
    FolderSerializer,
    GitDiffSerializer,
    GitLogSerializer,
    GitStatusSerializer,
    LogQuerySerializer,
    SearchQuerySerializer,
    WriteRequestSerializer,
    WrittenSerializer,
)
from sessions_app.workspace.services.workspace import ask_agentctl, find_saved_work, git_commit

IF_MATCH = OpenApiParameter(
    "If-Match",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The `hash` of the content that you read, or `*` to overwrite any version. "
    "Without it, only a new file can be created.",
)


class WorkspaceWritePermission(BasePermission):
    """Where agents are not isolated, only staff and trusted teams can write files.

    Whoever writes files there could take over the machine, for example through a git hook.
    """

    message = (
        "Agents are not isolated here, so only staff and teams with the operate_unisolated permission can write files."
    )

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the user may write here. TeamPermission has checked the session already."""
        return request.method in SAFE_METHODS or authorization.may_operate(cast(User, request.user), view.session)


class FolderView(SessionApiView):
    """A directory of the workspace."""

    @document_responses({200: FolderSerializer}, 400, 404, 503, parameters=[FolderQuerySerializer])
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List a directory of the workspace."""
        query = self.query(FolderQuerySerializer)
        if query["kept"]:
            return Response(list_saved_directory(find_saved_work(self.session), query["path"]))
        return Response(ask_agentctl(self.session, lambda client: client.list_files(query["path"])))


class FileSearchView(SessionApiView):
    """Finding files of the workspace by a few letters."""

    @document_responses({200: FileSearchSerializer}, 400, 404, 409, 503, parameters=[SearchQuerySerializer])
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Find files and directories whose path has the letters of `query` in this order, the best first.

        Files that git ignores are not found, and neither are names that contain characters which cannot be shown.
        """
        query = self.query(SearchQuerySerializer)
        if query["kept"]:
            return Response(search_saved_files(find_saved_work(self.session), query["query"]))
        return Response(ask_agentctl(self.session, lambda client: client.search_files(query["query"])))


class FileContentView(SessionApiView):
    """A file of the workspace."""

    permission_classes = [TeamPermission, WorkspaceWritePermission]
    parser_classes = [StrictJSONParser, FileParser]

    @document_responses({200: FileContentSerializer}, 400, 404, 503, parameters=[ContentQuerySerializer])
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Return a file of the workspace."""
        query = self.query(ContentQuerySerializer)
        if query["kept"]:
            file = read_saved_content(find_saved_work(self.session), query["path"])
        else:
            file = ask_agentctl(self.session, lambda client: client.read_file(query["path"]))
        if query["highlight"] and not file["binary"]:
            html = highlight_workspace_file(self.session, make_visible(file["content"]), file["path"])
            if html is not None:
                file = {**file, "html": html}
        return Response(file)

    @document_responses(
        {200: WrittenSerializer, 201: WrittenSerializer},
        *(400, 404, 409, 413, 503),
        request={"application/json": WriteRequestSerializer, "application/octet-stream": OpenApiTypes.BINARY},
        parameters=[PathQuerySerializer, IF_MATCH],
    )
    def put(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Write a file of the workspace, if it still has the content that you read."""
        path = self.query(PathQuerySerializer)["path"]
        content = self.body(WriteRequestSerializer)["content"]
        # ``*`` for any content; without the header, the file must not exist.
        expected = request.headers.get("If-Match")
        written = ask_agentctl(self.session, lambda client: client.write_file(path, content, expected))
        return Response(written, status=201 if written.get("created") else 200)


class GitStatusView(SessionApiView):
    """The state of the working tree."""

    @document_responses({200: GitStatusSerializer}, 400, 404, 409, 503, parameters=[KeptQuerySerializer])
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Return the state of the working tree."""
        if self.query(KeptQuerySerializer)["kept"]:
            return Response(saved_status(find_saved_work(self.session)))
        return Response(ask_agentctl(self.session, lambda client: client.git("status")))


class GitDiffView(SessionApiView):
    """The uncommitted changes."""

    @document_responses({200: GitDiffSerializer}, 400, 404, 409, 503, parameters=[FolderQuerySerializer])
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Return the diff of all files, or of one."""
        query = self.query(FolderQuerySerializer)
        if query["kept"]:
            return Response(saved_diff(find_saved_work(self.session), query["path"]))
        return Response(ask_agentctl(self.session, lambda client: client.git("diff", {"path": query["path"]})))


class GitLogView(SessionApiView):
    """The history."""

    @document_responses({200: GitLogSerializer}, 400, 404, 409, 503, parameters=[LogQuerySerializer])
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """List commits, newest first."""
        query = self.query(LogQuerySerializer)
        if query.pop("kept"):
            return Response(saved_log(find_saved_work(self.session), query["limit"], query["skip"]))
        params = {name: str(value) for name, value in query.items()}
        return Response(ask_agentctl(self.session, lambda client: client.git("log", params)))


class GitCommitView(SessionApiView):
    """Creating a commit."""

    @document_responses({200: CommittedSerializer}, 400, 404, 409, 503, request=CommitRequestSerializer)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Commit changes of the workspace, with you as the author."""
        return Response(git_commit(self.session, request.user, **self.body(CommitRequestSerializer)))
