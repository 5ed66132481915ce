"""URLs of sessions: pages and the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.kernel.addresses import SESSION, TASK
from sessions_app.sessions.api import views as api
from sessions_app.sessions.views import live_updates, sessions

urlpatterns = [
    path(SESSION, sessions.show_session, name="session"),
    path(SESSION + "earlier/", sessions.earlier_messages, name="session-earlier"),
    path(SESSION + "messages/<uuid:entry_id>/", sessions.show_message, name="session-message"),
    path(SESSION + "live/", live_updates.session_updates, name="session-live"),
    path(SESSION + "prompt/", sessions.submit_prompt, name="session-prompt"),
    path(SESSION + "<str:action>/", sessions.act_on_session, name="session-act"),
]

api_urlpatterns = [
    path("sessions/bulk/", api.SessionBulkView.as_view()),
    path(TASK + "sessions/", api.SessionListCreateView.as_view()),
    path(SESSION, api.SessionDetailView.as_view()),
    path(SESSION + "status/", api.SessionStatusView.as_view()),
    path(SESSION + "resume/", api.SessionResumeView.as_view()),
    path(SESSION + "cancel/", api.SessionCancelView.as_view()),
    path(SESSION + "stop/", api.SessionStopView.as_view()),
    path(SESSION + "more-output/", api.SessionMoreOutputView.as_view()),
    path(SESSION + "close/", api.SessionCloseView.as_view()),
    path(SESSION + "settings/", api.SessionSettingsView.as_view()),
]
