"""URLs of usage: the page and the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.kernel.addresses import SESSION
from sessions_app.usage import views
from sessions_app.usage.api.views import SessionBudgetView, TeamBudgetView, UsageView

urlpatterns = [
    path("usage/", views.show_usage, name="usage"),
    path("settings/teams/<int:team_id>/budget/", views.edit_team_budget, name="settings-team-budget"),
]

api_urlpatterns = [
    path("usage/", UsageView.as_view()),
    path(SESSION + "budget/", SessionBudgetView.as_view()),
    path("teams/<int:team_id>/budget/", TeamBudgetView.as_view()),
]
