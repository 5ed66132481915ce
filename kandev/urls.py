"""Root URLs (pages at the root, the API under ``api/v1/``, the admin under ``admin/``), and the handler of errors."""

from __future__ import annotations

import sys

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import loader
from django.urls import include, path
from django.views.defaults import server_error

from kandev.metrics import metrics_view
from sessions_app.kernel.database_errors import classify_error

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/", include("sessions_app.api.urls")),
    path("metrics", metrics_view, name="metrics"),
    path("", include("sessions_app.pages.urls")),
]

handler500 = "kandev.urls.handle_server_error"


def handle_server_error(request: HttpRequest) -> HttpResponse:
    """Handle a server error (Django's ``handler500``): 503 if the database is unavailable, else 500."""
    trouble = classify_error(sys.exc_info()[1])
    if trouble is None:
        return server_error(request)
    if request.path.startswith("/api/") or request.headers.get("Accept", "").startswith("application/json"):
        body = {"code": trouble.code, "message": f"{trouble.what} {trouble.next_step}", "details": {}}
        response: HttpResponse = JsonResponse(body, status=503)
    else:  # a page that needs no query: even the login is in the database
        again = "/"
        if request.method in ("GET", "HEAD"):
            again = request.get_full_path()
        page = loader.get_template("503.html").render({"trouble": trouble, "again": again})
        response = HttpResponse(page, status=503)
    response["Retry-After"] = str(trouble.retry_after)
    response["Cache-Control"] = "no-store"
    return response
