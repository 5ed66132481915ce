"""URLs of the board, tasks and bulk actions: pages and the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.board.api import views as api
from sessions_app.board.views import board, bulk, moves, tasks
from sessions_app.kernel.addresses import TASK

urlpatterns = [
    path("", board.show_board, name="board"),
    path("live/", board.board_updates, name="board-live"),
    path("first-steps/hide/", board.hide_first_steps, name="first-steps-hide"),
    path("sessions/bulk/", board.act_on_many_sessions, name="bulk"),
    path("tasks/bulk/", bulk.act_on_many_tasks, name="bulk-tasks"),
    path("tasks/<uuid:task_id>/", tasks.show_task, name="task"),
    path("tasks/<uuid:task_id>/edit/", tasks.edit_task, name="task-edit"),
    path("tasks/<uuid:task_id>/delete/", tasks.delete_task, name="task-delete"),
    path("tasks/<uuid:task_id>/live/", tasks.task_updates, name="task-live"),
    path("tasks/<uuid:task_id>/move/", moves.move_task, name="task-move"),
    path("tasks/<uuid:task_id>/<str:action>/", tasks.act_on_task, name="task-change"),
]

api_urlpatterns = [
    path("tasks/bulk/", api.TaskBulkView.as_view()),
    path("tasks/", api.TaskListCreateView.as_view()),
    path(TASK, api.TaskDetailView.as_view()),
    path(TASK + "archive/", api.TaskArchiveView.as_view()),
    path(TASK + "unarchive/", api.TaskUnarchiveView.as_view()),
    path(TASK + "unfinished/", api.TaskUnfinishedView.as_view()),
    path(TASK + "done/", api.TaskDoneView.as_view()),
    path(TASK + "cancel/", api.TaskCancelView.as_view()),
    path(TASK + "reopen/", api.TaskReopenView.as_view()),
]
