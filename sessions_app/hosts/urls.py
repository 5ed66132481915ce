"""URLs of the system page."""

from __future__ import annotations

from django.urls import path

from sessions_app.hosts import views

urlpatterns = [
    path("system/", views.show_system, name="system"),
    path("system/live/", views.system_updates, name="system-live"),
]
