"""URLs of the pages."""

from __future__ import annotations

from django.urls import include, path

from sessions_app.pages import (
    agent_setup,
    board,
    executors,
    health,
    help_pages,
    inbox,
    live_updates,
    recovery,
    sessions,
    tasks,
    timeline,
    waits,
)

_SESSION = "tasks/<uuid:task_id>/sessions/<uuid:session_id>/"

urlpatterns = [
    path("", board.show_board, name="board"),
    path("live/", live_updates.board_updates, name="board-live"),
    path("sessions/bulk/", board.act_on_many_sessions, name="bulk"),
    path("attention/", inbox.show_inbox, name="attention"),
    path("attention/live/", inbox.inbox_updates, name="attention-live"),
    path("attention/count/", inbox.inbox_count, name="attention-count"),
    path("attention/seen/", inbox.mark_all_seen, name="attention-mark-all"),
    path("attention/<uuid:item_id>/<str:what>/", inbox.mark_item, name="attention-mark"),
    path("executors/", executors.list_executors, name="executors"),
    path("executors/live/", live_updates.executor_updates, name="executors-live"),
    path("executors/<uuid:executor_id>/look/", executors.probe_and_redirect, name="executor-look"),
    path("agents/", executors.list_agents, name="agents"),
    path("agents/<slug:name>/", agent_setup.show_agent_setup, name="agent-setup"),
    path("agents/<slug:name>/live/", agent_setup.agent_test_updates, name="agent-setup-live"),
    path("agents/<slug:name>/<str:action>/", agent_setup.act_on_agent_setup, name="agent-setup-action"),
    path("favicon.ico", help_pages.favicon, name="favicon"),
    path("help/", help_pages.show_help, name="help"),
    path("help/pictures/<slug:name>.png", help_pages.help_picture, name="help-picture"),
    path("restart/", recovery.restart_control_plane, name="restart"),
    path("restart/live/", live_updates.restart_updates, name="restart-live"),
    path("sweeps/", recovery.list_sweeps, name="sweeps"),
    path("sweeps/live/", live_updates.sweep_updates, name="sweeps-live"),
    path("sweeps/<uuid:sweep_id>/", recovery.show_sweep, name="sweep"),
    path("sweeps/requests/<uuid:request_id>/", recovery.show_sweep_request, name="sweep-request"),
    path("sweeps/requests/<uuid:request_id>/live/", live_updates.sweep_request_updates, name="sweep-request-live"),
    path("tasks/<uuid:task_id>/", tasks.show_task, name="task"),
    path("tasks/<uuid:task_id>/live/", live_updates.task_updates, name="task-live"),
    path("tasks/<uuid:task_id>/<str:what>/", tasks.act_on_task, name="task-change"),
    path(_SESSION, sessions.show_session, name="session"),
    path(_SESSION + "earlier/", sessions.earlier_messages, name="session-earlier"),
    path(_SESSION + "live/", live_updates.session_updates, name="session-live"),
    path(_SESSION + "timeline/", timeline.show_timeline, name="session-timeline"),
    path(_SESSION + "timeline/live/", live_updates.timeline_updates, name="session-timeline-live"),
    path(_SESSION + "prompt/", sessions.queue_prompt, name="session-prompt"),
    path(_SESSION + "waits/", waits.begin_wait, name="session-wait"),
    path(_SESSION + "waits/again/", waits.begin_wait_again, name="session-wait-again"),
    path(_SESSION + "waits/rotate/", waits.rotate_wait_token, name="session-wait-rotate"),
    path(_SESSION + "<str:action>/", sessions.act_on_session, name="session-act"),
    path("", include("sessions_app.accounts.urls")),
    path("", include("sessions_app.notifications.urls")),
    path("", include("sessions_app.workflows.urls")),
    path("design/", help_pages.show_design_system, name="design"),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
]
