"""URLs of remotes: the settings page and the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.kernel.addresses import SESSION
from sessions_app.remotes import push_views, views
from sessions_app.remotes.api import push_views as push_api
from sessions_app.remotes.api import views as api

urlpatterns = [
    path("settings/repositories/<uuid:repository_id>/remote/", views.edit_remote, name="settings-repository-remote"),
    path(SESSION + "push/", push_views.show_push, name="session-push"),
    path(SESSION + "push/live/", push_views.push_updates, name="session-push-live"),
]

_REMOTE = "repositories/<uuid:repository_id>/remote/"

api_urlpatterns = [
    path(_REMOTE, api.RemoteView.as_view()),
    path(_REMOTE + "key/", api.RemoteKeyView.as_view()),
    path(_REMOTE + "token/", api.RemoteTokenView.as_view()),
    path(_REMOTE + "host-keys/", api.RemoteHostKeysView.as_view()),
    path(_REMOTE + "test/", api.RemoteTestView.as_view()),
    path(SESSION + "push/", push_api.PushView.as_view()),
]
