"""Pages of workflows at the root, and their API under ``api/v1/``."""

from __future__ import annotations

from django.urls import path

from sessions_app.workflows.api import views
from sessions_app.workflows.views import editor, lists, runs

urlpatterns = [
    path("workflows/", lists.list_workflows, name="workflows"),
    path("workflows/live/", lists.workflow_list_updates, name="workflows-live"),
    path("workflows/new/", editor.create_workflow, name="workflow-new"),
    path("workflows/check/", editor.check_workflow, name="workflow-check"),
    path("workflows/runs/<uuid:run_id>/", runs.show_run, name="workflow-run"),
    path("workflows/runs/<uuid:run_id>/live/", runs.run_updates, name="workflow-run-live"),
    path("workflows/runs/<uuid:run_id>/<str:action>/", runs.act_on_run, name="workflow-run-act"),
    path("workflows/<uuid:workflow_id>/", editor.edit_workflow, name="workflow"),
    path("workflows/<uuid:workflow_id>/run/", editor.start_workflow, name="workflow-start"),
    path("workflows/<uuid:workflow_id>/triggers/", editor.change_triggers, name="workflow-triggers"),
    path("workflows/<uuid:workflow_id>/archive/", editor.archive_and_redirect, name="workflow-archive"),
]

api_urlpatterns = [
    path("workflows/", views.WorkflowListCreateView.as_view()),
    path("workflows/check/", views.WorkflowCheckView.as_view()),
    path("workflows/<uuid:workflow_id>/", views.WorkflowDetailView.as_view()),
    path("workflows/<uuid:workflow_id>/runs/", views.WorkflowRunCreateView.as_view()),
    path("workflows/<uuid:workflow_id>/triggers/", views.WorkflowTriggersView.as_view()),
    path("workflows/<uuid:workflow_id>/triggers/confirm/", views.WorkflowTriggersConfirmView.as_view()),
    path("workflow-runs/", views.WorkflowRunListView.as_view()),
    path("workflow-runs/<uuid:run_id>/", views.WorkflowRunDetailView.as_view()),
    path("workflow-runs/<uuid:run_id>/cancel/", views.WorkflowRunCancelView.as_view()),
    path("workflow-runs/<uuid:run_id>/resume/", views.WorkflowRunResumeView.as_view()),
]
