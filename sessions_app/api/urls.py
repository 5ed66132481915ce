"""URLs of the API under ``/api/v1/``: those of the topics, its schema and its documentation."""

from __future__ import annotations

from django.urls import path, re_path
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework.permissions import IsAuthenticated

from sessions_app.accounts import urls as accounts
from sessions_app.agents import urls as agents
from sessions_app.api.errors import NotFoundView
from sessions_app.api.views import SchemaView, VersionView
from sessions_app.attention import urls as attention
from sessions_app.background import urls as background
from sessions_app.board import urls as board
from sessions_app.catalogue import urls as catalogue
from sessions_app.finish import urls as finish
from sessions_app.hosts import urls as hosts
from sessions_app.notifications import urls as notifications
from sessions_app.permissions import urls as permissions
from sessions_app.prompts import urls as prompts
from sessions_app.recovery import urls as recovery
from sessions_app.remotes import urls as remotes
from sessions_app.review import urls as review
from sessions_app.search import urls as search
from sessions_app.sessions import urls as sessions
from sessions_app.stream import urls as stream
from sessions_app.suspensions import urls as suspensions
from sessions_app.turns import urls as turns
from sessions_app.usage import urls as usage
from sessions_app.waits import urls as waits
from sessions_app.workflows import urls as workflows
from sessions_app.workspace import urls as workspace

urlpatterns = [
    *accounts.api_urlpatterns,
    *agents.api_urlpatterns,
    *attention.api_urlpatterns,
    *background.api_urlpatterns,
    *board.api_urlpatterns,
    *catalogue.api_urlpatterns,
    *finish.api_urlpatterns,
    *hosts.api_urlpatterns,
    *notifications.api_urlpatterns,
    *permissions.api_urlpatterns,
    *prompts.api_urlpatterns,
    *recovery.api_urlpatterns,
    *remotes.api_urlpatterns,
    *review.api_urlpatterns,
    *search.api_urlpatterns,
    *sessions.api_urlpatterns,
    *stream.api_urlpatterns,
    *suspensions.api_urlpatterns,
    *turns.api_urlpatterns,
    *usage.api_urlpatterns,
    *waits.api_urlpatterns,
    *workflows.api_urlpatterns,
    *workspace.api_urlpatterns,
    path("version/", VersionView.as_view()),
    path("schema/", SchemaView.as_view(), name="api-schema"),
    # All files of this page are served from this origin, and nothing is inline.
    path(
        "docs/",
        SpectacularSwaggerSplitView.as_view(
            permission_classes=[IsAuthenticated], template_name="api/docs.html", url_name="api-schema"
        ),
        name="api-docs",
    ),
    re_path("", NotFoundView.as_view()),
]
