"""Parsers, permissions and base classes of all API views."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import IO, Any, Final, cast

import orjson
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser
from rest_framework.permissions import SAFE_METHODS, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.views import APIView

from sessions_app.accounts import authorization
from sessions_app.accounts.requests import UserRequest
from sessions_app.api.errors import PayloadTooLarge
from sessions_app.api.pagination import NumberedPagination, paginate
from sessions_app.board.services.tasks import visible_tasks
from sessions_app.models import Task, TaskSession
from sessions_app.sessions.services.queries import visible_sessions

MAX_BODY: Final = 8 * 1024 * 1024
"""Bytes. Fits the longest prompt with every character escaped."""
MAX_PROMPT_BODY: Final = 2 * MAX_BODY
"""Bytes. Fits the longest prompt with the most that its files may have, in base64."""
MAX_DEPTH: Final = 32
MAX_VALUES: Final = 100_000
"""Names and entries of all objects and lists of one body."""


class StrictJSONParser(BaseParser):
    """Parse a JSON object of at most ``MAX_BODY`` bytes.

    Not a subclass of REST framework's JSONParser, which applies Django's smaller limit for forms. Raises ParseError
    for anything but an object, and PayloadTooLarge.
    """

    media_type = "application/json"
    max_body = MAX_BODY

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the object. JSON is UTF-8, whatever charset the request names."""
        try:
            value = orjson.loads(_read_body(stream, self.max_body))
        except orjson.JSONDecodeError as error:
            raise ParseError(f"The request body is not valid JSON: {error}.") from error
        if not isinstance(value, dict):
            raise ParseError("The request body must be a JSON object.")
        _check_values(value)
        return value


class FileParser(BaseParser):
    """Accept a body of any other media type as the content of a file of at most ``MAX_BODY`` bytes."""

    media_type = "*/*"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the content in the shape of the JSON request: base64 with its encoding."""
        return {"content": base64.b64encode(_read_body(stream)).decode(), "encoding": "base64"}


class PromptParser(StrictJSONParser):
    """Parse a prompt, which may carry files in base64: a JSON object of at most ``MAX_PROMPT_BODY`` bytes."""

    max_body = MAX_PROMPT_BODY


def _read_body(stream: IO[bytes], limit: int = MAX_BODY) -> bytes:
    body = stream.read(limit + 1)
    if len(body) > limit:
        raise PayloadTooLarge
    return body


def _check_values(body: dict[str, Any]) -> None:
    """Raise ParseError for text that cannot be stored, too deep nesting, and too many values."""
    waiting: list[tuple[Any, int]] = [(body, MAX_DEPTH)]
    count = 0
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, str):
            if "\0" in value:
                raise ParseError("Text cannot contain U+0000 (the NUL character).")
        elif isinstance(value, (dict, list)):
            if depth == 0:
                raise ParseError(f"The JSON is nested more than {MAX_DEPTH} levels deep.")
            count += len(value)
            if count > MAX_VALUES:
                raise ParseError(f"The JSON has more than {MAX_VALUES:,} values.")
            parts = list(value)
            if isinstance(value, dict):
                parts += value.values()
            waiting += [(part, depth - 1) for part in parts]


class TeamPermission(IsAuthenticated):
    """Members of the team can read, and members who are more than viewers can write."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the request is allowed. Raises Http404 if the object belongs to another team."""
        if not super().has_permission(request, view):
            return False
        user, team = cast(User, request.user), view.team_of_address()
        if request.method in SAFE_METHODS:
            return True
        if team is None:
            return user.is_staff or authorization.may_write_somewhere(user)
        return authorization.may_write(user, team)


class StaffWritePermission(IsAuthenticated):
    """All authenticated users can read; only staff can write."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the request is allowed."""
        return super().has_permission(request, view) and (request.method in SAFE_METHODS or request.user.is_staff)


class StaffPermission(IsAuthenticated):
    """Only staff can read or write."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the request is allowed."""
        return super().has_permission(request, view) and request.user.is_staff


class TeamManagerWritePermission(IsAuthenticated):
    """Members can read; staff and the team's admins can write."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the request is allowed. Raises Http404 if the user cannot see the team."""
        if not super().has_permission(request, view):
            return False
        team = view.team
        if request.method in SAFE_METHODS:
            return True
        user = cast(User, request.user)
        return not getattr(user, "only_reads", False) and authorization.may_manage(user, team)


class ApiView(APIView):
    """Base class of the API's views: read the request, call one service, serialize what it returns."""

    request: UserRequest

    parser_classes = [StrictJSONParser]
    permission_classes = [TeamPermission]
    pagination_class: type[Any] = NumberedPagination

    def team_of_address(self) -> int | None:
        """Return the id of the team that owns the object in the URL; None if no team does."""
        return None

    def body(self, kind: type[BaseSerializer[Any]], **context: Any) -> dict[str, Any]:
        """Return the validated request body. Raises ValidationError."""
        return self._checked(kind, self.request.data, context)

    def query(self, kind: type[BaseSerializer[Any]]) -> dict[str, Any]:
        """Return the validated query parameters. Raises ValidationError."""
        return self._checked(kind, self.request.query_params.dict(), {})

    def _checked(self, kind: type[BaseSerializer[Any]], data: Any, context: dict[str, Any]) -> dict[str, Any]:
        serializer = kind(data=data, context={"request": self.request, **context})
        serializer.is_valid(raise_exception=True)
        checked: dict[str, Any] = serializer.validated_data
        return checked

    def show(self, kind: type[BaseSerializer[Any]], row: Any, status: int = 200) -> Response:
        """Return a response with one serialized object."""
        return Response(kind(row, context={"request": self.request}).data, status=status)

    def list(self, kind: type[BaseSerializer[Any]], rows: QuerySet[Any] | Sequence[Any], **context: Any) -> Response:
        """Return a response with one page of serialized objects."""
        found, paginator = paginate(rows, self)
        shown = kind(found, many=True, context={"request": self.request, **context}).data
        return paginator.get_paginated_response(shown)


class TaskApiView(ApiView):
    """Base class of views below ``tasks/{task_id}/``.

    A task of another team is a 404 before anything else in the request is checked.
    """

    @cached_property
    def task(self) -> Task:
        """The task in the URL. Raises Http404 unless it belongs to one of the user's teams."""
        found: Task = get_object_or_404(visible_tasks(self.request.user), id=self.kwargs["task_id"])
        return found

    def team_of_address(self) -> int:
        """Return the task's team."""
        return self.task.team_id


class SessionApiView(ApiView):
    """Base class of views below ``tasks/{task_id}/sessions/{session_id}/``.

    A session of another team is a 404 before anything else in the request is checked.
    """

    @cached_property
    def session(self) -> TaskSession:
        """The session in the URL. Raises Http404 unless it is on this task, and the task in one of the user's teams."""
        rows = visible_sessions(self.request.user).filter(task_id=self.kwargs["task_id"])
        found: TaskSession = get_object_or_404(rows, id=self.kwargs["session_id"])
        return found

    def team_of_address(self) -> int:
        """Return the team of the session's task."""
        return self.session.task.team_id
