"""URLs of the requests of agents: the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.kernel.addresses import SESSION
from sessions_app.permissions.api import views as api

api_urlpatterns = [
    path(SESSION + "permissions/", api.PermissionListView.as_view()),
    path(SESSION + "permissions/<name:permission_id>/", api.PermissionAnswerView.as_view()),
]
