"""URLs of background processes: the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.background.api.views import BackgroundPolicyView
from sessions_app.kernel.addresses import SESSION

api_urlpatterns = [
    path(SESSION + "background/", BackgroundPolicyView.as_view()),
]
