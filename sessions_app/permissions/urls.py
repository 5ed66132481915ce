"""URLs of the requests of agents: the page to answer them, and the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.kernel.addresses import SESSION
from sessions_app.permissions.api import views as api
from sessions_app.permissions.views import answer_page

urlpatterns = [
    path(SESSION + "requests/", answer_page.show_requests, name="session-requests"),
    path(SESSION + "requests/live/", answer_page.requests_live, name="session-requests-live"),
]

api_urlpatterns = [
    path(SESSION + "permissions/", api.PermissionListView.as_view()),
    path(SESSION + "permissions/<name:permission_id>/", api.PermissionAnswerView.as_view()),
]
