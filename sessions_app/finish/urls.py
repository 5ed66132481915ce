"""URLs of merges and pushes: a page, and the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.finish import views
from sessions_app.finish.api import views as api
from sessions_app.kernel.addresses import SESSION

urlpatterns = [
    path(SESSION + "finish/", views.show_finish, name="session-finish"),
    path(SESSION + "finish/live/", views.finish_live, name="session-finish-live"),
    path(SESSION + "finish/conflicts/", views.send_conflicts, name="session-finish-conflicts"),
]
api_urlpatterns = [
    path(SESSION + "merge/", api.MergeView.as_view()),
    path(SESSION + "finish/", api.FinishIntentListView.as_view()),
]
