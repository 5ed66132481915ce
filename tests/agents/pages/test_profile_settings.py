"""The settings pages of agent profiles: who may change what, secrets, guarded edits, and what depends on a profile."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from executors_app.models import AgentProfile
from executors_app.wire.executions import LOCAL
from sessions_app.accounts.models import TeamRole
from sessions_app.agents.services import profile_settings
from sessions_app.agents.views import profile_settings as profile_views
from tests.pages.world import World

pytestmark = pytest.mark.any_database

LIST = "/settings/agents/"


@pytest.fixture
def profile(world: World) -> AgentProfile:
    env = {"OPENAI_API_KEY": "sk-very-secret", "PROXY": "http://proxy-secret"}
    return AgentProfile.objects.create(name="Codex", agent_type="codex", team=world.team, env=env)


@pytest.fixture
def admin(ada: Client, world: World) -> Client:
    TeamRole.objects.create(user=world.ada, team=world.team, role=TeamRole.Role.ADMIN)
    return ada


def address(profile: AgentProfile, action: str = "") -> str:
    return f"{LIST}{profile.pk}/{action}"


def entered(client: Client, profile: AgentProfile, **values: Any) -> dict[str, Any]:
    """Return what the form of the page sends if a user changes these values."""
    page = client.get(address(profile))
    form = page.context["form"]
    shown = {name: form[name].value() for name in form.fields}
    return {
        "version": page.context["version"],
        **{name: value for name, value in shown.items() if value not in (None, False)},
        **values,
    }


def test_popular_agents_come_first_and_others_are_found_by_name(staff: Client) -> None:
    html = staff.get(f"{LIST}new/").text
    assert html.index("Claude Code") < html.index("Codex") < html.index("OpenCode") < html.index("Demo agent")
    assert "Agentao" not in html
    found = staff.get(f"{LIST}new/?q=agentao").text
    assert f"{LIST}new/agentao/" in found
    assert "No agent has this name" in staff.get(f"{LIST}new/?q=<b>none").text


def test_staff_add_a_profile_and_its_secrets_are_never_shown(staff: Client, world: World) -> None:
    body = {
        "name": "Our Codex",
        "team": world.team.pk,
        "permission_mode": "ask",
        "key": "sk-very-secret",
        "variables": "PROXY=http://proxy-secret\n",
        "args": "--flag 'two words'",
        "secret_hosts": "PROXY: tools.example, docs.example:8443",
    }
    page = staff.post(f"{LIST}new/codex/", body, follow=True)
    made = AgentProfile.objects.get(name="Our Codex")
    assert (made.agent_type, made.team) == ("codex", world.team)
    assert made.env == {"OPENAI_API_KEY": "sk-very-secret", "PROXY": "http://proxy-secret"}
    assert (made.args, made.secret_hosts) == (
        ["--flag", "two words"],
        {"PROXY": ["tools.example", "docs.example:8443"]},
    )
    assert "was added" in page.text
    invalid = staff.post(f"{LIST}new/codex/", {**body, "name": ""})
    assert invalid.status_code == 422
    for html in (page.text, invalid.text):
        assert "sk-very-secret" not in html
        assert "proxy-secret" not in html


def test_variables_are_set_and_removed_one_by_one(staff: Client, profile: AgentProfile) -> None:
    staff.post(address(profile), entered(staff, profile, variables="NEW=1", removed=["PROXY"]))
    profile.refresh_from_db()
    assert profile.env == {"OPENAI_API_KEY": "sk-very-secret", "NEW": "1"}
    staff.post(address(profile), entered(staff, profile, name="Renamed"))
    profile.refresh_from_db()
    assert (profile.name, profile.env) == ("Renamed", {"OPENAI_API_KEY": "sk-very-secret", "NEW": "1"})


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("args", "--open 'quote", "A quote is not closed."),
        ("variables", "not a pair", "Write each as NAME=value"),
        ("additional_directories", "relative", "Expected absolute paths."),
        ("gone_patterns", "(", "is not a regular expression"),
        ("secret_hosts", "KEY: not a host", "is no host"),
    ],
)
def test_invalid_value_is_explained_at_its_field(
    staff: Client, profile: AgentProfile, field: str, value: str, said: str
) -> None:
    page = staff.post(address(profile), entered(staff, profile, **{field: value}))
    assert page.status_code == 422
    assert said in page.context["form"].errors[field][0]
    assert '<details class="more-settings" open>' in page.text
    assert page.context["version"] == profile_settings.version_of(profile), "the corrected form is still guarded"


def test_second_editor_is_told_and_overwrites_nothing(staff: Client, profile: AgentProfile) -> None:
    first, second = entered(staff, profile, model="one"), entered(staff, profile, model="two", variables="NEW=1")
    assert staff.post(address(profile), first).status_code == 302
    page = staff.post(address(profile), second)
    profile.refresh_from_db()
    assert (page.status_code, profile.model, "NEW" in profile.env) == (409, "one", False)
    assert "Changed meanwhile" in page.text
    assert 'value="two"' in page.text, "what was entered is kept"
    assert staff.post(address(profile), {**second, "version": page.context["version"]}).status_code == 302
    profile.refresh_from_db()
    assert profile.model == "two"


def test_changed_secret_alone_is_noticed_and_its_version_tells_nothing(staff: Client, profile: AgentProfile) -> None:
    before = profile_settings.version_of(profile)
    profile.env = {**profile.env, "PROXY": "other"}
    assert profile_settings.version_of(profile) != before


def test_admin_of_the_team_changes_what_runs_nothing(admin: Client, profile: AgentProfile) -> None:
    body = entered(admin, profile, name="Ours", model="large")
    assert set(body) - {"version"} <= set(profile_settings.TEAM_FIELDS)
    assert admin.post(address(profile), {**body, "command": "sh", "variables": "PATH=/tmp"}).status_code == 302
    profile.refresh_from_db()
    assert (profile.name, profile.model, profile.command, "PATH" in profile.env) == ("Ours", "large", [], False)
    assert admin.post(address(profile, "disable/")).status_code == 302
    assert admin.get(address(profile, "delete/")).status_code == 403
    assert admin.get(f"{LIST}new/").status_code == 403


def test_page_says_who_disabled_a_profile_and_who_can_enable_it(admin: Client, profile: AgentProfile) -> None:
    staff = Client()
    staff.force_login(User.objects.create_user("root", is_staff=True))
    admin.post(address(profile, "disable/"))
    page = admin.get(address(profile)).text
    assert "and the admins of" in page
    assert address(profile, "enable/") in page
    admin.post(address(profile, "enable/"))
    staff.post(address(profile, "disable/"))
    page = admin.get(address(profile)).text
    assert "Only administrators can enable it: ask one." in page
    assert address(profile, "enable/") not in page + admin.get(LIST).text
    refused = admin.post(address(profile, "enable/"), follow=True)
    assert "was disabled by an administrator" in refused.text
    profile.refresh_from_db()
    assert profile.disabled_at is not None
    assert address(profile, "enable/") in staff.get(address(profile)).text


def test_mcp_server_is_added_over_the_version_that_was_shown(staff: Client, bob: Client, profile: AgentProfile) -> None:
    url = "https://docs.example/mcp"
    servers = {"name": "docs", "kind": "http", "target": url, "values": "Authorization=very-secret"}
    body = {**servers, "version": profile_settings.version_of(profile)}
    kept = profile.mcp_servers
    assert bob.post(address(profile, "servers/"), body).status_code == 403
    invalid = staff.post(address(profile, "servers/"), {**body, "target": "ftp://x"})
    assert (invalid.status_code, "very-secret" in invalid.text) == (422, False)
    page = staff.post(address(profile, "servers/"), body, follow=True)
    assert "docs" in page.text
    assert "very-secret" not in page.text
    late = staff.post(address(profile, "servers/"), {**body, "name": "other"})
    assert (late.status_code, "meanwhile" in late.text) == (409, True)
    profile.refresh_from_db()
    added = {"name": "docs", "type": "http", "url": url, "headers": {"Authorization": "very-secret"}}
    assert profile.mcp_servers == [*kept, added]


def test_shared_profile_belongs_to_staff_and_that_of_another_team_does_not_exist(
    admin: Client, bob: Client, world: World, profile: AgentProfile
) -> None:
    assert admin.get(address(world.profile)).status_code == 403
    assert bob.get(address(profile)).status_code == 404
    assert "Codex" not in bob.get(LIST).text
    assert address(world.profile) not in admin.get(LIST).text


def test_what_depends_on_a_profile_is_said_before_it_is_deleted(
    staff: Client, world: World, profile: AgentProfile
) -> None:
    world.session()
    page = staff.get(address(world.profile, "delete/"))
    assert "used by 1 session." in page.text
    assert staff.post(address(world.profile, "delete/")).status_code == 409
    assert staff.post(address(profile, "delete/"), follow=True).redirect_chain
    assert not AgentProfile.objects.filter(pk=profile.pk).exists()


def test_changes_name_who_made_them_and_no_value(staff: Client, profile: AgentProfile) -> None:
    staff.post(address(profile), entered(staff, profile, variables="PROXY=new-secret"))
    staff.post(address(profile, "disable/"))
    said = list(LogEntry.objects.filter(object_id=str(profile.pk)).values_list("change_message", flat=True))
    assert sorted(said) == ["Changed env.", "Disabled."]
    assert "Changed env." in staff.get(address(profile)).text


def test_history_names_who_stored_a_key_of_an_agent_or_added_something_by_the_api(staff: Client, world: World) -> None:
    stored = {"team": world.team.pk, "variable": "OPENAI_API_KEY", "value": "sk-very-secret"}
    staff.post("/agents/codex/key/", stored)
    codex = AgentProfile.objects.get(agent_type="codex")
    made = [
        staff.post("/api/v1/agent-profiles/", {"name": "By API", "agent_type": "demo"}, "application/json").json(),
        staff.post("/api/v1/executors/", {"name": "By API", "runtime": LOCAL}, "application/json").json(),
    ]
    said = dict(LogEntry.objects.values_list("object_id", "change_message"))
    assert said == {str(codex.pk): "Changed env.", **{row["id"]: "Added." for row in made}}
    assert set(LogEntry.objects.values_list("user__username", flat=True)) == {world.ada.username}


def test_profile_that_somebody_deletes_meanwhile_is_not_found(
    staff: Client, profile: AgentProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = profile_views._find

    def find_and_delete(*args: Any) -> AgentProfile:
        found = find(*args)
        AgentProfile.objects.filter(pk=found.pk).delete()
        return found

    monkeypatch.setattr(profile_views, "_find", find_and_delete)
    assert staff.post(address(profile, "disable/")).status_code == 404
