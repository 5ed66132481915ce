"""URLs of suspensions: the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.kernel.addresses import SESSION
from sessions_app.suspensions.api.views import GoOnView

api_urlpatterns = [
    path(SESSION + "go-on/", GoOnView.as_view()),
]
