"""Where everything is: the pages at the root, the API under ``api/v1/``, the admin under ``admin/``."""

from __future__ import annotations

from importlib.util import find_spec

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls)]
if find_spec("sessions_app.api"):
    urlpatterns.append(path("api/v1/", include("sessions_app.api.urls")))
if find_spec("sessions_app.views"):
    urlpatterns.append(path("", include("sessions_app.views.urls")))
