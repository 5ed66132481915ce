"""URLs of usage: the page and the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.usage import views
from sessions_app.usage.api.views import UsageView

urlpatterns = [
    path("usage/", views.show_usage, name="usage"),
]

api_urlpatterns = [
    path("usage/", UsageView.as_view()),
]
