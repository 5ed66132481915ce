"""The answer to a request that failed here, wherever it failed: a mistake of ours, or a disk that is full."""

from __future__ import annotations

import sys

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import loader
from django.views.defaults import server_error

from sessions_app.models.storage import FULL, NEXT_STEP, is_full


def failed(request: HttpRequest) -> HttpResponse:
    """Django's ``handler500``, called while the error is handled: 503 where the database has no room."""
    if not is_full(sys.exc_info()[1]):
        return server_error(request)
    if request.path.startswith("/api/"):
        body = {"code": "database_full", "message": f"{FULL} {NEXT_STEP}", "details": {}}
        return JsonResponse(body, status=503)
    page = loader.get_template("503.html").render({"what": FULL, "next_step": NEXT_STEP})
    return HttpResponse(page, status=503)
