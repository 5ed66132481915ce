"""URLs of repositories, executors and executions: pages and the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.catalogue import executor_views, repository_views, views
from sessions_app.catalogue.api import views as api

_EXECUTOR = "settings/executors/<uuid:executor_id>/"

urlpatterns = [
    path("settings/executors/", executor_views.list_executor_settings, name="settings-executors"),
    path("settings/executors/new/", executor_views.choose_runtime, name="settings-executor-new"),
    path("settings/executors/new/<slug:runtime>/", executor_views.add_executor, name="settings-executor-add"),
    path(_EXECUTOR, executor_views.edit_executor, name="settings-executor"),
    path(_EXECUTOR + "delete/", executor_views.confirm_executor_deletion, name="settings-executor-delete"),
    path(_EXECUTOR + "<str:action>/", executor_views.act_on_executor, name="settings-executor-action"),
    path("executors/", views.list_executors, name="executors"),
    path("executors/live/", views.executor_updates, name="executors-live"),
    path("executors/<uuid:executor_id>/look/", views.probe_and_redirect, name="executor-look"),
    path("settings/repositories/", repository_views.list_repositories, name="settings-repositories"),
    path("settings/repositories/<uuid:repository_id>/", repository_views.edit_repository, name="settings-repository"),
]

api_urlpatterns = [
    path("repositories/", api.RepositoryListCreateView.as_view()),
    path("repositories/<uuid:repository_id>/", api.RepositoryDetailView.as_view()),
    path("executors/", api.ExecutorListCreateView.as_view()),
    path("executors/running/", api.ExecutionListView.as_view()),
    path("executors/<uuid:executor_id>/", api.ExecutorDetailView.as_view()),
    path("executors/<uuid:executor_id>/probe/", api.ExecutorProbeView.as_view()),
]
