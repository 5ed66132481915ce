"""URLs of agents: pages and the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.agents.api import views as api
from sessions_app.agents.views import agent_setup, agents, mcp_servers, profile_settings
from sessions_app.kernel.addresses import SESSION

_PROFILE = "settings/agents/<uuid:profile_id>/"

urlpatterns = [
    path("settings/agents/", profile_settings.list_profile_settings, name="settings-agents"),
    path("settings/agents/new/", profile_settings.choose_agent_type, name="settings-profile-new"),
    path("settings/agents/new/<slug:name>/", profile_settings.add_profile, name="settings-profile-add"),
    path(_PROFILE, profile_settings.edit_profile, name="settings-profile-of-agent"),
    path(_PROFILE + "delete/", profile_settings.confirm_profile_deletion, name="settings-profile-delete"),
    path(_PROFILE + "servers/", profile_settings.put_profile_server, name="settings-profile-servers"),
    path(_PROFILE + "<str:action>/", profile_settings.act_on_profile, name="settings-profile-action"),
    path("agents/", agents.list_agents, name="agents"),
    path("agents/<slug:name>/", agent_setup.show_agent_setup, name="agent-setup"),
    path("agents/<slug:name>/live/", agent_setup.agent_test_updates, name="agent-setup-live"),
    path("agents/<slug:name>/<str:action>/", agent_setup.act_on_agent_setup, name="agent-setup-action"),
    path("settings/teams/<int:team_id>/mcp-servers/", mcp_servers.edit_team_servers, name="settings-team-mcp"),
    path(
        "settings/repositories/<uuid:repository_id>/mcp-servers/",
        mcp_servers.edit_repository_servers,
        name="settings-repository-mcp",
    ),
]

api_urlpatterns = [
    path(SESSION + "login/", api.SessionLoginView.as_view()),
    path(SESSION + "logout/", api.SessionLogoutView.as_view()),
    path("agent-types/", api.AgentTypeListView.as_view()),
    path("agent-types/<slug:name>/login/", api.AgentTypeLoginView.as_view()),
    path("agent-types/<slug:name>/logout/", api.AgentTypeLogoutView.as_view()),
    path("agent-profiles/", api.AgentProfileListCreateView.as_view()),
    path("agent-profiles/<uuid:profile_id>/", api.AgentProfileDetailView.as_view()),
    path("teams/<int:team_id>/mcp-servers/", api.TeamMcpServerListView.as_view()),
    path("repositories/<uuid:repository_id>/mcp-servers/", api.RepositoryMcpServerListView.as_view()),
]
