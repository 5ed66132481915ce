"""The app of workflows: the file language, its engine, and what is stored of workflows and their runs."""

from __future__ import annotations

from django.apps import AppConfig


class WorkflowsConfig(AppConfig):
    """``workflows``."""

    name = "sessions_app.workflows"
    label = "workflows"
    verbose_name = "Workflows"
    default_auto_field = "django.db.models.BigAutoField"
