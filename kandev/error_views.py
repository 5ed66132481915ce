"""The answer to a request that failed here, wherever it failed: a mistake of ours, or a database in trouble."""

from __future__ import annotations

import sys

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import loader
from django.views.defaults import server_error

from sessions_app.models.database_errors import DatabaseTrouble, classify_error


def handle_server_error(request: HttpRequest) -> HttpResponse:
    """Django's ``handler500``, called while the error is handled: 503 where the database takes nothing now."""
    trouble = classify_error(sys.exc_info()[1])
    if trouble is None:
        return server_error(request)
    answer = _json_response(trouble) if _expects_json(request) else _html_response(request, trouble)
    answer["Retry-After"] = str(trouble.retry_after)
    answer["Cache-Control"] = "no-store"
    return answer


def _expects_json(request: HttpRequest) -> bool:
    return request.path.startswith("/api/") or request.headers.get("Accept", "").startswith("application/json")


def _json_response(trouble: DatabaseTrouble) -> HttpResponse:
    body = {"code": trouble.code, "message": f"{trouble.what} {trouble.next_step}", "details": {}}
    return JsonResponse(body, status=503)


def _html_response(request: HttpRequest, trouble: DatabaseTrouble) -> HttpResponse:
    """Without a word from the database, in which the login is."""
    again = request.get_full_path() if request.method in ("GET", "HEAD") else "/"
    page = loader.get_template("503.html").render({"trouble": trouble, "again": again})
    return HttpResponse(page, status=503)
