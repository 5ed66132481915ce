"""URLs of turns: the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.kernel.addresses import SESSION
from sessions_app.turns import api

api_urlpatterns = [
    path(SESSION + "runs/", api.RunListView.as_view()),
]
