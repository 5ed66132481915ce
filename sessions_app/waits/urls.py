"""URLs of waits: pages and the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.kernel.addresses import SESSION
from sessions_app.waits import views
from sessions_app.waits.api import views as api

urlpatterns = [
    path("waits/", views.show_open_waits, name="waits"),
    path(SESSION + "waits/", views.create_wait, name="session-wait"),
    path(SESSION + "waits/again/", views.begin_wait_again, name="session-wait-again"),
    path(SESSION + "waits/rotate/", views.rotate_wait_key, name="session-wait-rotate"),
]

api_urlpatterns = [
    path("waits/", api.OpenWaitListView.as_view()),
    path(SESSION + "waits/", api.WaitCreateView.as_view()),
    path(SESSION + "waits/<name:wait_id>/again/", api.WaitAgainView.as_view()),
    path(SESSION + "waits/<name:wait_id>/continue/", api.WaitContinueView.as_view()),
    path("runs/resume/", api.RunResumeView.as_view()),
]
