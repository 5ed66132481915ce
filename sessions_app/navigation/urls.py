"""URLs of the palette."""

from __future__ import annotations

from django.urls import path

from sessions_app.navigation import views

urlpatterns = [
    path("find/", views.find, name="find"),
]
