"""Where the settings are, under ``settings/``."""

from __future__ import annotations

from django.urls import path

from sessions_app.views import look
from sessions_app.views.settings import notifications, password, people, policies, profile, teams, tokens

urlpatterns = [
    path("", profile.settings, name="settings"),
    path("profile/", profile.profile, name="settings-profile"),
    path("theme/", look.change_theme, name="theme"),
    path("password/", password.password, name="settings-password"),
    path("password/logins/", password.end_logins, name="settings-end-logins"),
    path("notifications/", notifications.notifications, name="settings-notifications"),
    path("notifications/test/", notifications.test_email, name="settings-test-email"),
    path("notifications/webhooks/", notifications.add_webhook, name="settings-webhooks"),
    path("notifications/webhooks/<uuid:webhook_id>/<str:what>/", notifications.change_webhook, name="settings-webhook"),
    path("tokens/", tokens.tokens, name="settings-tokens"),
    path("tokens/<uuid:token_id>/revoke/", tokens.revoke, name="settings-token-revoke"),
    path("teams/", teams.teams, name="settings-teams"),
    path("teams/<int:team_id>/", teams.team, name="settings-team"),
    path("teams/<int:team_id>/policy/", policies.team_policy, name="settings-team-policy"),
    path("teams/<int:team_id>/invite/", teams.invite, name="settings-team-invite"),
    path("teams/<int:team_id>/add/", teams.add, name="settings-team-add"),
    path("teams/<int:team_id>/members/<int:user_id>/", teams.change, name="settings-team-change"),
    path("teams/<int:team_id>/members/<int:user_id>/remove/", teams.remove, name="settings-team-remove"),
    path("people/", people.people, name="settings-people"),
    path("people/<int:user_id>/link/", people.link, name="settings-person-link"),
    path("people/<int:user_id>/active/", people.activity, name="settings-person-active"),
]
