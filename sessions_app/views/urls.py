"""Where the pages are."""

from __future__ import annotations

from django.urls import path

from sessions_app.views import board, health, live, login, session_actions, session_page, task_page

_SESSION = "tasks/<uuid:task_id>/sessions/<uuid:session_id>/"

urlpatterns = [
    path("", board.board, name="board"),
    path("live/", live.board, name="board-live"),
    path("login/", login.Login.as_view(), name="login"),
    path("login/<str:secret>/", login.one_time_link, name="login-link"),
    path("logout/", login.Logout.as_view(), name="logout"),
    path("tasks/<uuid:task_id>/", task_page.task, name="task"),
    path("tasks/<uuid:task_id>/live/", live.task, name="task-live"),
    path("tasks/<uuid:task_id>/<str:what>/", task_page.change, name="task-change"),
    path(_SESSION, session_page.session, name="session"),
    path(_SESSION + "live/", live.session, name="session-live"),
    path(_SESSION + "prompt/", session_actions.prompt, name="session-prompt"),
    path(_SESSION + "<str:action>/", session_actions.act, name="session-act"),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
]
