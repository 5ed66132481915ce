"""Where everything is: the pages at the root, the API under ``api/v1/``, the admin under ``admin/``."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from kandev.metrics.page import metrics

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/", include("sessions_app.api.urls")),
    path("metrics", metrics, name="metrics"),
    path("", include("sessions_app.views.urls")),
]

handler500 = "kandev.failures.failed"
