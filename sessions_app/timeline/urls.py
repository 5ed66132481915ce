"""URLs of the timeline: pages."""

from __future__ import annotations

from django.urls import path

from sessions_app.kernel.addresses import SESSION
from sessions_app.timeline import views

urlpatterns = [
    path(SESSION + "timeline/", views.show_timeline, name="session-timeline"),
    path(SESSION + "timeline/live/", views.timeline_updates, name="session-timeline-live"),
]
