"""Where the settings are, under ``settings/``."""

from __future__ import annotations

from django.urls import path

from sessions_app.accounts.pages import appearance, profile, teams
from sessions_app.notifications import pages

urlpatterns = [
    path("", profile.redirect_to_settings, name="settings"),
    path("profile/", profile.edit_profile, name="settings-profile"),
    path("theme/", appearance.change_theme, name="theme"),
    path("password/", profile.change_password, name="settings-password"),
    path("password/logins/", profile.log_out_elsewhere, name="settings-end-logins"),
    path("notifications/", pages.edit_notification_settings, name="settings-notifications"),
    path("notifications/test/", pages.send_test_email_now, name="settings-test-email"),
    path("notifications/webhooks/", pages.create_webhook_from_form, name="settings-webhooks"),
    path("notifications/webhooks/<uuid:webhook_id>/<str:what>/", pages.change_or_test_webhook, name="settings-webhook"),
    path("tokens/", profile.manage_tokens, name="settings-tokens"),
    path("tokens/<uuid:token_id>/revoke/", profile.revoke_own_token, name="settings-token-revoke"),
    path("teams/", teams.list_teams, name="settings-teams"),
    path("teams/<int:team_id>/", teams.show_team, name="settings-team"),
    path("teams/<int:team_id>/policy/", teams.edit_team_policy, name="settings-team-policy"),
    path("teams/<int:team_id>/invite/", teams.invite_team_member, name="settings-team-invite"),
    path("teams/<int:team_id>/add/", teams.add_team_member, name="settings-team-add"),
    path("teams/<int:team_id>/members/<int:user_id>/", teams.change_team_member_role, name="settings-team-change"),
    path("teams/<int:team_id>/members/<int:user_id>/remove/", teams.remove_team_member, name="settings-team-remove"),
    path("people/", teams.manage_accounts, name="settings-people"),
    path("people/<int:user_id>/link/", teams.show_login_link, name="settings-person-link"),
    path("people/<int:user_id>/active/", teams.change_account_active, name="settings-person-active"),
]
