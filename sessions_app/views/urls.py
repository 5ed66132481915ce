"""Where the pages are."""

from __future__ import annotations

from django.urls import path

from sessions_app.views import (
    board,
    executors,
    health,
    live,
    login,
    session_actions,
    session_page,
    sweeps,
    task_page,
    waits,
)

_SESSION = "tasks/<uuid:task_id>/sessions/<uuid:session_id>/"

urlpatterns = [
    path("", board.board, name="board"),
    path("live/", live.board, name="board-live"),
    path("executors/", executors.executors, name="executors"),
    path("executors/live/", live.executors, name="executors-live"),
    path("sweeps/", sweeps.sweeps, name="sweeps"),
    path("sweeps/live/", live.sweeps, name="sweeps-live"),
    path("sweeps/<uuid:sweep_id>/", sweeps.sweep, name="sweep"),
    path("login/", login.Login.as_view(), name="login"),
    path("login/<str:secret>/", login.one_time_link, name="login-link"),
    path("logout/", login.Logout.as_view(), name="logout"),
    path("tasks/<uuid:task_id>/", task_page.task, name="task"),
    path("tasks/<uuid:task_id>/live/", live.task, name="task-live"),
    path("tasks/<uuid:task_id>/<str:what>/", task_page.change, name="task-change"),
    path(_SESSION, session_page.session, name="session"),
    path(_SESSION + "live/", live.session, name="session-live"),
    path(_SESSION + "prompt/", session_actions.prompt, name="session-prompt"),
    path(_SESSION + "waits/", waits.open_wait, name="session-wait"),
    path(_SESSION + "waits/rotate/", waits.rotate, name="session-wait-rotate"),
    path(_SESSION + "<str:action>/", session_actions.act, name="session-act"),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
]
