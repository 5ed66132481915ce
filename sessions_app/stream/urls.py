"""URLs of the conversation and its events: the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.kernel.addresses import SESSION
from sessions_app.stream.api import event_stream
from sessions_app.stream.api import views as api

api_urlpatterns = [
    path(SESSION + "messages/", api.MessageListView.as_view()),
    path(SESSION + "events/", api.EventListView.as_view()),
    path(SESSION + "events/stream", event_stream.EventStreamView.as_view()),
]
