"""A session's log as Server-Sent Events."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, cast

from django.contrib.auth.base_user import AbstractBaseUser
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import Throttled, ValidationError
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request

from sessions_app.api.base_views import SessionApiView
from sessions_app.api.pagination import MAX_SEQ
from sessions_app.api.serializers.common import ProblemSerializer
from sessions_app.live.authentication import Principal, Subscription
from sessions_app.live.event_stream import event_stream
from sessions_app.live.hub import has_too_many_subscriptions
from sessions_app.live.log_reader import start_stream_at

SEQ_SCHEMA = {"type": "integer", "minimum": 0}


class EventStreamRenderer(BaseRenderer):
    """Declare the media type that a browser's EventSource accepts; errors are JSON all the same."""

    media_type = "text/event-stream"
    format = "event-stream"

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        """Never called, because the response is a stream."""
        raise NotImplementedError


class EventStreamView(SessionApiView):
    """A session's events as a stream."""

    renderer_classes = [EventStreamRenderer, JSONRenderer]

    @extend_schema(
        responses={
            (200, EventStreamRenderer.media_type): OpenApiTypes.STR,
            **{(status, JSONRenderer.media_type): ProblemSerializer for status in (400, 401, 404, 429)},
        },
        parameters=[
            OpenApiParameter("after", SEQ_SCHEMA, description="Send only events with a greater `seq`."),
            OpenApiParameter(
                "Last-Event-ID",
                SEQ_SCHEMA,
                OpenApiParameter.HEADER,
                description="The same as `after`, and takes precedence over it.",
            ),
        ],
    )
    def get(self, request: Request, task_id: uuid.UUID, session_id: uuid.UUID) -> StreamingHttpResponse:
        """Stream the events after ``after``, then new events as they happen; the ``id`` of each is its ``seq``."""
        principal = _principal_of_request(request)
        if has_too_many_subscriptions(principal.user_id):
            raise Throttled(detail="You have too many event streams open. Close one, then try again.")
        start = start_stream_at(self.session, _parse_after(request))
        subscription = Subscription(principal, self.session.task_id, self.session.id)
        response = StreamingHttpResponse(event_stream(subscription, start), content_type=EventStreamRenderer.media_type)
        response["Cache-Control"] = "no-store"
        response["X-Accel-Buffering"] = "no"
        return response


def _parse_after(request: Request) -> int:
    name = "Last-Event-ID" if "Last-Event-ID" in request.headers else "after"
    given = request.headers.get("Last-Event-ID") or request.query_params.get("after", "0")
    if not (given.isascii() and given.isdigit() and len(given) < 20 and int(given) <= MAX_SEQ):
        raise ValidationError({name: [f"Must be a whole number from 0 to {MAX_SEQ}."]})
    return int(given)


def _principal_of_request(request: Request) -> Principal:
    """Return what authenticated the request, so that the stream can check later whether it is still valid."""
    user = cast(AbstractBaseUser, request.user)  # the permission class requires a user
    token: Any = request.auth
    if token is not None:
        return Principal.of_token(token)
    return Principal(user.pk, login=request.session.session_key, password_fingerprint=user.get_session_auth_hash())
