"""Where the pages of workflows are, under ``workflows/``."""

from __future__ import annotations

from django.urls import path

from sessions_app.workflows.pages import editor, listing, runs

urlpatterns = [
    path("", listing.list_workflows, name="workflows"),
    path("live/", editor.workflow_list_updates, name="workflows-live"),
    path("new/", editor.create_workflow, name="workflow-new"),
    path("check/", editor.check_workflow, name="workflow-check"),
    path("runs/<uuid:run_id>/", runs.show_run, name="workflow-run"),
    path("runs/<uuid:run_id>/live/", runs.run_updates, name="workflow-run-live"),
    path("runs/<uuid:run_id>/<str:what>/", runs.act_on_run, name="workflow-run-act"),
    path("<uuid:workflow_id>/", editor.edit_workflow, name="workflow"),
    path("<uuid:workflow_id>/run/", editor.start_workflow, name="workflow-start"),
    path("<uuid:workflow_id>/triggers/", editor.change_triggers, name="workflow-triggers"),
    path("<uuid:workflow_id>/archive/", editor.archive_and_redirect, name="workflow-archive"),
]
