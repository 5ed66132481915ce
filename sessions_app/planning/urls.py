"""URLs of the plans of tasks."""

from __future__ import annotations

from django.urls import path

from sessions_app.planning import views

urlpatterns = [path("tasks/<uuid:task_id>/plan/", views.edit_plan, name="task-plan")]
