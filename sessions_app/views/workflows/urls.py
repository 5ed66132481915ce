"""Where the pages of workflows are, under ``workflows/``."""

from __future__ import annotations

from django.urls import path

from sessions_app.views.workflows import editor, listing, run_page, starting

urlpatterns = [
    path("", listing.workflows, name="workflows"),
    path("live/", starting.live, name="workflows-live"),
    path("new/", editor.new, name="workflow-new"),
    path("check/", editor.check, name="workflow-check"),
    path("runs/<uuid:run_id>/", run_page.run, name="workflow-run"),
    path("runs/<uuid:run_id>/live/", run_page.live, name="workflow-run-live"),
    path("runs/<uuid:run_id>/<str:what>/", run_page.act, name="workflow-run-act"),
    path("<uuid:workflow_id>/", editor.workflow, name="workflow"),
    path("<uuid:workflow_id>/run/", starting.start, name="workflow-start"),
    path("<uuid:workflow_id>/triggers/", starting.triggers, name="workflow-triggers"),
    path("<uuid:workflow_id>/archive/", starting.archive, name="workflow-archive"),
]
