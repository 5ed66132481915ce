"""URLs of the workspace: the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.kernel.addresses import SESSION
from sessions_app.workspace.api import views as api

api_urlpatterns = [
    path(SESSION + "files/", api.FolderView.as_view()),
    path(SESSION + "files/search/", api.FileSearchView.as_view()),
    path(SESSION + "files/content/", api.FileContentView.as_view()),
    path(SESSION + "git/status/", api.GitStatusView.as_view()),
    path(SESSION + "git/diff/", api.GitDiffView.as_view()),
    path(SESSION + "git/log/", api.GitLogView.as_view()),
    path(SESSION + "git/commit/", api.GitCommitView.as_view()),
]
