"""A session's log as Server-Sent Events, for clients that only read."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, cast

import orjson
from asgiref.sync import sync_to_async
from django.contrib.auth.base_user import AbstractBaseUser
from django.db import connections
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import Throttled, ValidationError
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request

from sessions_app.api.base_views import SessionApiView
from sessions_app.api.pagination import MAX_SEQ
from sessions_app.api.serializers.common import ProblemSerializer
from sessions_app.stream.live.authentication import CloseCode, Principal, Subscription
from sessions_app.stream.live.hub import LogLine, Subscriber, TooManySubscriptions, get_hub, has_too_many_subscriptions
from sessions_app.stream.live.stream_start import StreamStart, start_stream_at

HEARTBEAT: Final = 15.0
"""Seconds without a line after which a comment is sent, so that proxies keep the connection open."""
MAX_BYTES: Final = 32 * 1024 * 1024
"""Bytes after which a stream ends: the server buffers what a client does not read. The client reconnects."""
RETRY_AFTER: Final = (1000, 3000)
"""Milliseconds after which a client reconnects: at random, so that not all return at once to a restarted server."""
SEQ_SCHEMA = {"type": "integer", "minimum": 0}


class EventStream(Subscriber):
    """A subscriber whose lines wait here until the web server takes them, which counts as their acknowledgement."""

    def __init__(self, subscription: Subscription, start: StreamStart):
        super().__init__(subscription, {start.log: start.seq})
        self._lines: list[LogLine] = []
        self._available = asyncio.Event()

    async def transmit(self, lines: Sequence[LogLine]) -> None:
        """Put lines where ``chunks`` takes them from."""
        self._lines.extend(lines)
        self._available.set()

    async def close(self, code: CloseCode) -> None:
        """End ``chunks``."""
        self._lines.clear()
        self._available.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield lines and heartbeats until the stream is closed or has reached ``MAX_BYTES``."""
        sent_bytes = 0
        while sent_bytes < MAX_BYTES:
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await self._available.wait()
            except TimeoutError:
                yield b": heartbeat\n\n"
                continue
            self._available.clear()
            if self.is_closed:
                return
            lines, self._lines = self._lines, []
            chunk = "".join(f"id: {line.seq}\ndata: {line.text}\n\n" for line in lines).encode()
            sent_bytes += len(chunk)
            yield chunk
            # Only now: the server asks for the next chunk when it has taken this one.
            self.window.ack(lines[-1].log.session_id, lines[-1].seq)


async def event_stream(subscription: Subscription, start: StreamStart) -> AsyncIterator[bytes]:
    """Yield the chunks of a response that lasts until the client leaves or loses access."""
    # The request's thread lives as long as the response; its database connection must not.
    await sync_to_async(connections.close_all)()
    stream = EventStream(subscription, start)
    try:
        # Joined before the snapshot is sent, fed after it: no line is missed, and none comes before the snapshot.
        get_hub().join(stream, {start.log: start.head})
        yield b"retry: %d\n\n" % random.randint(*RETRY_AFTER)  # noqa: S311 - no secret
        if start.snapshot is not None:
            truncated = orjson.dumps({"type": "truncated", "snapshot": start.snapshot})
            yield b"id: %d\ndata: %s\n\n" % (start.seq, truncated)
        get_hub().start_feeding(stream)
        async for chunk in stream.chunks():
            yield chunk
    except TooManySubscriptions:
        return
    finally:
        get_hub().leave(stream)


class EventStreamRenderer(BaseRenderer):
    """Declare the media type that a browser's EventSource accepts; errors are still JSON."""

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
