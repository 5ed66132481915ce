"""Root URLs: the pages at the root, the API under ``api/v1/``, the admin under ``admin/``."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from kandev.metrics.exporter import metrics_view
from sessions_app.moved_models import old_admin_urls

urlpatterns = [
    *old_admin_urls(),
    path("admin/", admin.site.urls),
    path("api/v1/", include("sessions_app.api.urls")),
    path("metrics", metrics_view, name="metrics"),
    path("", include("sessions_app.pages.urls")),
]

handler500 = "kandev.error_views.handle_server_error"
