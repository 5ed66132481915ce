"""Admin pages of the plans and labels of tasks."""

from __future__ import annotations

from django.contrib import admin

from executors_app.staff_admin import ReadOnlyModelAdmin
from sessions_app.models import TaskLabel, TaskPlan


@admin.register(TaskPlan)
class TaskPlanAdmin(ReadOnlyModelAdmin):
    """Who does a task, and how urgent it is. Members change it on the task's page."""

    list_display = ("task", "assignee", "priority", "updated_at")
    list_filter = ("priority",)
    list_select_related = ("task", "assignee")
    search_fields = ("=task__id", "task__title", "assignee__username")
    date_hierarchy = "updated_at"
    ordering = ("-updated_at",)


@admin.register(TaskLabel)
class TaskLabelAdmin(ReadOnlyModelAdmin):
    """Labels of tasks."""

    list_display = ("id", "name", "task")
    list_select_related = ("task",)
    search_fields = ("name", "=task__id", "task__title")
    ordering = ("-id",)
