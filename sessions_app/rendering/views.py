"""Images of tools, each under the digest of its content: raster images only, which run nothing in a browser."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from django.db.models import TextField
from django.db.models.functions import Cast, Length
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.pages.shortcuts import find_session
from sessions_app.rendering.operations.tool_calls import find_images
from sessions_app.stream.rules.tool_calls import REVIEW_LIMIT
from sessions_app.stream.views import PAYLOAD_LIMIT

_HEADERS: Final[Mapping[str, str]] = {
    "Content-Disposition": "inline",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    # An address names its content, so it never shows anything else.
    "Cache-Control": "private, max-age=86400, immutable",
}


@require_safe
def message_image(
    request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID, entry_id: uuid.UUID, digest: str
) -> HttpResponse:
    """Return an image of a tool call of the conversation."""
    session = find_session(request, task_id, session_id)
    size = Length(Cast("payload", TextField()))
    tools = session.messages.filter(role="tool").annotate(size=size).filter(size__lte=PAYLOAD_LIMIT)
    return _image_response(get_object_or_404(tools, id=entry_id).payload, digest)


@require_safe
def request_image(
    request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID, request_id: str, digest: str
) -> HttpResponse:
    """Return an image of what an agent asks a permission for."""
    session = find_session(request, task_id, session_id)
    shown = session.permissions.filter(size__lte=2 * REVIEW_LIMIT)
    return _image_response(get_object_or_404(shown, id=request_id).tool_call, digest)


def _image_response(payload: Mapping[str, Any], digest: str) -> HttpResponse:
    for image in find_images(payload):
        if image.digest == digest:
            return HttpResponse(image.content, image.media_type, headers=dict(_HEADERS))
    raise Http404(digest)
