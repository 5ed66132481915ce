"""URLs of the palette, of the list of sessions, and of marks on them."""

from __future__ import annotations

from django.urls import path

from sessions_app.kernel.addresses import SESSION
from sessions_app.navigation import views

urlpatterns = [
    path("find/", views.find, name="find"),
    path("sessions/list/", views.session_list, name="session-list"),
    path(SESSION + "seen/", views.mark_session_seen, name="session-seen"),
    path(SESSION + "pin/", views.pin_session, name="session-pin"),
]
