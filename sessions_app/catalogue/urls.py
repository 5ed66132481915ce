"""URLs of repositories, executors and executions: the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.catalogue.api import views as api

api_urlpatterns = [
    path("repositories/", api.RepositoryListCreateView.as_view()),
    path("executors/", api.ExecutorListCreateView.as_view()),
    path("executors/running/", api.ExecutionListView.as_view()),
    path("executors/<uuid:executor_id>/", api.ExecutorDetailView.as_view()),
    path("executors/<uuid:executor_id>/probe/", api.ExecutorProbeView.as_view()),
]
