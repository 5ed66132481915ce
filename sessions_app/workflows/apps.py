"""The workflows app: file language, engine, and the models of workflows and their runs."""

from __future__ import annotations

from django.apps import AppConfig


class WorkflowsConfig(AppConfig):
    """Configuration of the ``workflows`` app."""

    name = "sessions_app.workflows"
    label = "workflows"
    verbose_name = "Workflows"
    default_auto_field = "django.db.models.BigAutoField"
