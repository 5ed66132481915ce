"""What all API views share: parsers, permissions and base views."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import IO, Any, Final

import orjson
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
from sessions_app.api.errors import PayloadTooLarge
from sessions_app.api.pagination import NumberedPagination, paginate
from sessions_app.models import Task, TaskSession
from sessions_app.services import catalogue

MAX_BODY: Final = 8 * 1024 * 1024
"""Bytes: the longest prompt with every character escaped."""
MAX_DEPTH: Final = 32


class StrictJSONParser(BaseParser):
    """Reads a JSON object; anything else is a ParseError, and too much of it TooLarge.

    No relative of REST framework's JSONParser, whose bodies end at Django's limit for forms.
    """

    media_type = "application/json"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The object. JSON is UTF-8, whatever the request says."""
        try:
            value = orjson.loads(_read_body(stream))
        except orjson.JSONDecodeError as error:
            raise ParseError(f"This is not JSON: {error}.") from error
        if not isinstance(value, dict):
            raise ParseError("A JSON object is wanted.")
        _check_value(value, MAX_DEPTH)
        return value


class FileParser(BaseParser):
    """Takes any other body for the content of a file; too much of it is TooLarge."""

    media_type = "*/*"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The content as a JSON object would have had it."""
        return {"content": base64.b64encode(_read_body(stream)).decode(), "encoding": "base64"}


def _read_body(stream: IO[bytes]) -> bytes:
    body = stream.read(MAX_BODY + 1)
    if len(body) > MAX_BODY:
        raise PayloadTooLarge
    return body


def _check_value(value: Any, depth: int) -> None:
    if isinstance(value, str):
        if "\0" in value:
            raise ParseError("U+0000 cannot be stored in any text.")
    elif isinstance(value, (dict, list)):
        if depth == 0:
            raise ParseError(f"The JSON is nested more than {MAX_DEPTH} deep.")
        parts = (*value, *value.values()) if isinstance(value, dict) else value
        for part in parts:
            _check_value(part, depth - 1)


class TeamPermission(IsAuthenticated):
    """Whoever is in the team reads, and whoever is more than a viewer in it writes (rule 39)."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Whether this request may go on; Http404 where the address names another team's."""
        if not super().has_permission(request, view):
            return False
        team = view.team_of_address()
        if request.method in SAFE_METHODS:
            return True
        if team is None:
            return bool(request.user.is_staff) or authorization.may_write_somewhere(request.user)
        return authorization.may_write(request.user, team)


class StaffWritePermission(IsAuthenticated):
    """Everybody who is logged in reads, staff alone writes."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Whether this request may go on."""
        known = super().has_permission(request, view)
        return known and (request.method in SAFE_METHODS or request.user.is_staff)


class ApiView(APIView):
    """A view: read the request, call one service, show what it gives."""

    parser_classes = [StrictJSONParser]
    permission_classes = [TeamPermission]
    pagination_class: type[Any] = NumberedPagination

    def team_of_address(self) -> int | None:
        """The id of the team that the address belongs to; None if it is for everybody."""
        return None

    def body(self, kind: type[BaseSerializer[Any]], **context: Any) -> dict[str, Any]:
        """The checked body of the request; ValidationError by field."""
        return self._checked(kind, self.request.data, context)

    def query(self, kind: type[BaseSerializer[Any]]) -> dict[str, Any]:
        """The checked query of the address; ValidationError by parameter."""
        return self._checked(kind, self.request.query_params.dict(), {})

    def _checked(self, kind: type[BaseSerializer[Any]], data: Any, context: dict[str, Any]) -> dict[str, Any]:
        serializer = kind(data=data, context={"request": self.request, **context})
        serializer.is_valid(raise_exception=True)
        checked: dict[str, Any] = serializer.validated_data
        return checked

    def show(self, kind: type[BaseSerializer[Any]], row: Any, status: int = 200) -> Response:
        """One thing."""
        return Response(kind(row, context={"request": self.request}).data, status=status)

    def list(self, kind: type[BaseSerializer[Any]], rows: QuerySet[Any] | Sequence[Any], **context: Any) -> Response:
        """One piece of a list."""
        found, paginator = paginate(rows, self)
        shown = kind(found, many=True, context={"request": self.request, **context}).data
        return paginator.get_paginated_response(shown)


class TaskApiView(ApiView):
    """A view under ``tasks/{task_id}/``; a task of another team is a 404 whatever else is wrong."""

    @cached_property
    def task(self) -> Task:
        """The task of the address; Http404 if it is not one of the user's teams."""
        found: Task = get_object_or_404(catalogue.visible_tasks(self.request.user), id=self.kwargs["task_id"])
        return found

    def team_of_address(self) -> int:
        """The task's; it is found before anything is read from the request."""
        return self.task.team_id


class SessionApiView(ApiView):
    """A view under ``tasks/{task_id}/sessions/{session_id}/``; another team's is a 404 whatever else is wrong."""

    @cached_property
    def session(self) -> TaskSession:
        """The session with task, profile and executor; Http404 if it is not on this task of the user's teams."""
        rows = catalogue.visible_sessions(self.request.user).filter(task_id=self.kwargs["task_id"])
        found: TaskSession = get_object_or_404(rows, id=self.kwargs["session_id"])
        return found

    def team_of_address(self) -> int:
        """Its task's; the session is found before anything is read from the request."""
        return self.session.task.team_id
