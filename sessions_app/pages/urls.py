"""URLs of all pages: those of the topics, and of what belongs to none."""

from __future__ import annotations

from django.urls import path

from sessions_app.accounts import urls as accounts
from sessions_app.agents import urls as agents
from sessions_app.attention import urls as attention
from sessions_app.board import urls as board
from sessions_app.catalogue import urls as catalogue
from sessions_app.finish import urls as finish
from sessions_app.hosts import urls as hosts
from sessions_app.navigation import urls as navigation
from sessions_app.notifications import urls as notifications
from sessions_app.pages.views import design, health, help_pages
from sessions_app.permissions import urls as permissions
from sessions_app.planning import urls as planning
from sessions_app.prompts import urls as prompts
from sessions_app.recovery import urls as recovery
from sessions_app.remotes import urls as remotes
from sessions_app.rendering import urls as rendering
from sessions_app.review import urls as review
from sessions_app.search import urls as search
from sessions_app.sessions import urls as sessions
from sessions_app.timeline import urls as timeline
from sessions_app.usage import urls as usage
from sessions_app.waits import urls as waits
from sessions_app.workflows import urls as workflows

urlpatterns = [
    *accounts.urlpatterns,
    *agents.urlpatterns,
    *attention.urlpatterns,
    *planning.urlpatterns,  # before the board: one of its addresses takes any action
    *board.urlpatterns,
    *catalogue.urlpatterns,
    *navigation.urlpatterns,
    *finish.urlpatterns,
    *hosts.urlpatterns,
    *notifications.urlpatterns,
    *permissions.urlpatterns,
    *prompts.urlpatterns,
    *recovery.urlpatterns,
    *remotes.urlpatterns,
    *rendering.urlpatterns,
    *review.urlpatterns,
    *search.urlpatterns,
    *timeline.urlpatterns,
    *usage.urlpatterns,
    *waits.urlpatterns,
    *workflows.urlpatterns,
    *sessions.urlpatterns,  # last: one of its addresses takes any action
    path("favicon.ico", help_pages.favicon, name="favicon"),
    path("help/", help_pages.show_help, name="help"),
    path("help/pictures/<slug:name>.png", help_pages.help_picture, name="help-picture"),
    path("design/", design.show_design_system, name="design"),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
]
