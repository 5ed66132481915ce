"""URLs of login and settings pages at the root, and of the token API under ``api/v1/``."""

from __future__ import annotations

from django.urls import path

from sessions_app.accounts.api import tokens
from sessions_app.accounts.views import login, profile, settings, teams

_TEAM = "settings/teams/<int:team_id>/"

urlpatterns = [
    path("login/", login.LoginView.as_view(), name="login"),
    path("login/<str:secret>/", login.confirm_login_link, name="login-link"),
    path("logout/", login.LogoutView.as_view(), name="logout"),
    path("settings/", profile.redirect_to_settings, name="settings"),
    path("settings/profile/", profile.edit_profile, name="settings-profile"),
    path("settings/theme/", settings.change_theme, name="theme"),
    path("settings/password/", profile.change_password, name="settings-password"),
    path("settings/password/logins/", profile.log_out_elsewhere, name="settings-end-logins"),
    path("settings/tokens/", profile.manage_tokens, name="settings-tokens"),
    path("settings/tokens/<uuid:token_id>/revoke/", profile.revoke_own_token, name="settings-token-revoke"),
    path("settings/members/", teams.list_all_members, name="settings-members"),
    path("settings/teams/", teams.list_teams, name="settings-teams"),
    path(_TEAM, teams.show_team, name="settings-team"),
    path(_TEAM + "policy/", teams.edit_team_policy, name="settings-team-policy"),
    path(_TEAM + "invite/", teams.invite_team_member, name="settings-team-invite"),
    path(_TEAM + "add/", teams.add_team_member, name="settings-team-add"),
    path(_TEAM + "members/<int:user_id>/", teams.edit_team_member, name="settings-team-member"),
    path(_TEAM + "members/<int:user_id>/remove/", teams.remove_team_member, name="settings-team-remove"),
    path("settings/people/", teams.manage_accounts, name="settings-people"),
    path("settings/people/<int:user_id>/link/", teams.show_login_link, name="settings-person-link"),
    path("settings/people/<int:user_id>/active/", teams.change_account_active, name="settings-person-active"),
]

api_urlpatterns = [
    path("tokens/", tokens.ApiTokenListCreateView.as_view()),
    path("tokens/<uuid:token_id>/", tokens.ApiTokenDeleteView.as_view()),
]
