from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.utils import timezone
from rest_framework.test import APIClient

from executors_app.models import AgentProfile, Executor
from executors_app.plugins import runtime
from sessions_app.accounts.audit import recent_changes
from sessions_app.accounts.models import TeamRole
from sessions_app.catalogue.services import executors
from sessions_app.models import Host, TaskSession
from tests.api.world import SECRET, World, client_of
from tests.placement.hosts import add_supervisor

PROFILES, EXECUTORS = "/api/v1/agent-profiles/", "/api/v1/executors/"


def test_agent_types_state_their_capabilities(world: World, api: APIClient) -> None:
    types = {row["name"]: row for row in api.get("/api/v1/agent-types/").json()["results"]}
    assert types["demo"]["wants_command"] is False
    assert types["custom_acp"]["wants_command"] is True
    for row in types.values():
        assert row["requires_new_session"] is not row["supports_session_resume"]


def test_profile_shows_only_the_names_of_its_secrets(world: World, staff: APIClient) -> None:
    request = {
        "name": "custom",
        "agent_type": "custom_acp",
        "command": ["agent", "", " --flag "],
        "args": ["-v"],
        "env": {"TOKEN": SECRET, "EMPTY": ""},
        "mcp_servers": [{"name": "tools", "url": "https://tools.example/", "headers": {"Authorization": SECRET}}],
        "permission_mode": "auto_approve",
        "supports_session_resume": False,
        "background_policy": "end",
    }
    answer = staff.post(PROFILES, request, format="json")
    assert answer.status_code == 201
    assert SECRET not in answer.content.decode()
    made = answer.json()
    assert (made["env"], made["mcp_servers"]) == (["EMPTY", "TOKEN"], ["tools"])
    assert (made["command"], made["team"], made["supports_session_resume"]) == (request["command"], None, False)
    assert made["background_policy"] == "end"
    assert AgentProfile.objects.get(id=made["id"]).env == request["env"]
    response = client_of(world.member).get(PROFILES)
    assert response.json()["count"] == 2
    assert SECRET not in response.content.decode()


def test_profile_with_unreadable_secrets_is_still_listed(world: World, api: APIClient, settings: Any) -> None:
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another key", []
    [profile] = api.get(PROFILES).json()["results"]
    assert (profile["name"], profile["env"], profile["mcp_servers"]) == ("demo", [], [])


def test_stranger_sees_only_shared_profiles(world: World) -> None:
    AgentProfile.objects.create(name="shared", agent_type="demo")
    rows = client_of(world.stranger).get(PROFILES).json()["results"]
    assert [row["name"] for row in rows] == ["shared"]


@pytest.mark.parametrize(
    ("url", "body", "field"),
    [
        (PROFILES, {"name": "x", "agent_type": "nothing"}, "agent_type"),
        (PROFILES, {"name": "x"}, "agent_type"),
        (PROFILES, {"name": "x", "agent_type": "demo", "command": "rm -rf"}, "command"),
        (PROFILES, {"name": "x", "agent_type": "demo", "args": [1]}, "args"),
        (
            PROFILES,
            {"name": "x", "agent_type": "demo", "additional_directories": ["../up"]},
            "additional_directories",
        ),
        (PROFILES, {"name": "x", "agent_type": "demo", "gone_patterns": ["("]}, "gone_patterns"),
        (PROFILES, {"name": "x", "agent_type": "demo", "gone_patterns": ["x" * 201]}, "gone_patterns"),
        (PROFILES, {"name": "x", "agent_type": "demo", "env": {"A=B": "c"}}, "env"),
        (PROFILES, {"name": "x", "agent_type": "demo", "env": {"A": {}}}, "env"),
        (PROFILES, {"name": "x", "agent_type": "demo", "mcp_servers": [{}]}, "mcp_servers"),
        (PROFILES, {"name": "x", "agent_type": "demo", "permission_mode": "yes"}, "permission_mode"),
        (PROFILES, {"name": "x", "agent_type": "demo", "background_policy": "kill"}, "background_policy"),
        (PROFILES, {"name": "x", "agent_type": "demo", "team": 10**30}, "team"),
        (EXECUTORS, {"name": "x", "runtime": "moon"}, "runtime"),
        (EXECUTORS, {"name": "here", "runtime": "local_standalone"}, "name"),
        (EXECUTORS, {"name": "x", "runtime": "local_standalone", "config": []}, "config"),
        (EXECUTORS, {"name": "x", "runtime": "local_standalone", "config": {"a": 1}}, "config"),
        (EXECUTORS, {"name": "x", "runtime": "local_standalone", "max_live": 10**30}, "max_live"),
        (EXECUTORS, {"name": "x", "runtime": "local_standalone", "max_live": -1}, "max_live"),
    ],
)
def test_invalid_staff_input_is_named(
    world: World, staff: APIClient, url: str, body: dict[str, Any], field: str
) -> None:
    answer = staff.post(url, body, format="json")
    assert (answer.status_code, list(answer.json()["details"])) == (400, [field])


def test_executor_settings_are_shown_only_to_staff(world: World, staff: APIClient) -> None:
    answer = staff.post(EXECUTORS, {"name": "there", "runtime": "local_standalone", "max_live": 3}, format="json")
    assert answer.status_code == 201
    made = answer.json()
    assert (made["config"], made["max_live"], made["trusted_agents_only"]) == ({}, 3, True)
    seen = client_of(world.member).get(EXECUTORS).json()["results"]
    assert [(row["name"], row["config"]) for row in seen] == [("here", None), ("there", None)]


def test_host_of_an_executor_is_set_by_name_and_shown_to_staff(world: World, staff: APIClient) -> None:
    add_supervisor("build-1")
    body = {"name": "there", "runtime": "local_standalone", "host": "build-1"}
    assert staff.post(EXECUTORS, body, format="json").json()["host"] == "build-1"
    seen = client_of(world.member).get(EXECUTORS).json()["results"]
    assert [row["host"] for row in seen] == [None, None]
    unknown = staff.post(EXECUTORS, {**body, "name": "elsewhere", "host": "moon"}, format="json")
    assert (unknown.status_code, list(unknown.json()["details"])) == (400, ["host"])


def test_host_of_an_executor_is_changed_by_name(world: World, staff: APIClient) -> None:
    add_supervisor("build-1")
    address = f"{EXECUTORS}{world.executor.id}/"
    version = staff.get(address).json()["version"]
    changed = staff.patch(address, {"host": "build-1", "version": version}, format="json")
    assert (changed.status_code, changed.json()["host"]) == (200, "build-1")
    late = staff.patch(address, {"host": "", "version": version}, format="json")
    assert (late.status_code, late.json()["code"]) == (409, "settings_changed")
    assert client_of(world.member).patch(address, {"host": ""}, format="json").status_code == 403
    assert staff.patch(address, {"host": "", "labels": "gpu"}, format="json").json()["host"] is None
    assert [line.change_message for line in recent_changes(world.executor)] == [
        "Changed labels, host_id.",
        "Changed host_id.",
    ]


@pytest.mark.parametrize(
    ("host", "runtime", "says"),
    [
        ("moon", "local_standalone", "There is no host with this name"),
        ("web-1", "local_standalone", "No supervisor has run on this host"),
        ("build-1", "remote", "do not depend on a host"),
    ],
)
def test_host_that_could_start_nothing_there_is_refused(
    world: World, staff: APIClient, host: str, runtime: str, says: str
) -> None:
    add_supervisor("build-1")
    Host.objects.create(name="web-1", first_seen_at=timezone.now())
    Executor.objects.filter(pk=world.executor.pk).update(runtime=runtime)
    answer = staff.patch(f"{EXECUTORS}{world.executor.id}/", {"host": host}, format="json")
    assert (answer.status_code, list(answer.json()["details"])) == (400, ["host"])
    assert says in answer.json()["message"]
    world.executor.refresh_from_db()
    assert world.executor.host is None


def test_probe_counts_what_it_observes(world: World, staff: APIClient) -> None:
    world.mark_running("unix:/nowhere/agentctl")
    answer = staff.post(f"{EXECUTORS}{world.executor.id}/probe/")
    assert answer.status_code == 200
    assert answer.json()["runtime"] == "local_standalone"
    assert sum(answer.json()["observed"].values()) == 1
    assert answer.json()["observed"]["alive"] == 0


def test_duration_of_a_probe_includes_the_connection(
    world: World, staff: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]

    async def connect(_config: object) -> None:
        now[0] += 2.5

    monkeypatch.setattr(executors, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(runtime("local_standalone"), "check_availability", connect)
    assert staff.post(f"{EXECUTORS}{world.executor.id}/probe/").json()["duration_ms"] == 2500


def test_probe_of_an_unusable_executor_says_so(world: World, staff: APIClient) -> None:
    Executor.objects.update(config={"unknown": 1})
    answer = staff.post(f"{EXECUTORS}{world.executor.id}/probe/")
    assert (answer.status_code, answer.json()["code"]) == (503, "runtime_unavailable")


def test_probes_require_staff_and_are_throttled(world: World, api: APIClient, staff: APIClient) -> None:
    probe = f"{EXECUTORS}{world.executor.id}/probe/"
    assert api.post(probe).status_code == 403
    assert [staff.post(probe).status_code for _ in range(21)] == [200] * 20 + [429]


def test_address_of_an_unusable_host_is_shown_to_staff(
    world: World, staff: APIClient, settings: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings.KANDEV_DATA_DIR = tmp_path
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts" / "build").touch(0o600)
    url = "https://127.0.0.2:1"
    Executor.objects.update(runtime="remote", config={"url": url, "token_file": "build"})
    answer = staff.post(f"{EXECUTORS}{world.executor.id}/probe/")
    assert (answer.status_code, answer.json()["message"]) == (
        503,
        f"The remote host: Nothing is listening at agentctl's address. Its address is {url}.",
    )
    assert url in caplog.text, "the log has the address for operators"
    [row] = client_of(world.member).get(EXECUTORS).json()["results"]
    assert url not in str(row)


def test_fingerprint_without_tls_is_refused(world: World, staff: APIClient) -> None:
    config = {"url": "http://127.0.0.1:1", "token_file": "build", "fingerprint": "ab" * 32}
    Executor.objects.update(runtime="remote", config=config)
    answer = staff.post(f"{EXECUTORS}{world.executor.id}/probe/")
    assert (answer.status_code, "over http there is no certificate to check" in answer.json()["message"]) == (503, True)
    made = staff.post(EXECUTORS, {"name": "there", "runtime": "remote", "config": config}, format="json")
    assert (made.status_code, list(made.json()["details"])) == (400, ["config"])


def test_unused_executor_can_be_deleted(world: World, api: APIClient, staff: APIClient) -> None:
    idle = Executor.objects.create(name="idle", runtime="local_standalone")
    assert api.get(f"{EXECUTORS}{idle.id}/").json()["name"] == "idle"
    assert api.delete(f"{EXECUTORS}{idle.id}/").status_code == 403
    assert staff.delete(f"{EXECUTORS}{idle.id}/").status_code == 204
    assert staff.delete(f"{EXECUTORS}{idle.id}/").status_code == 404


def test_executor_used_by_sessions_is_kept(world: World, staff: APIClient) -> None:
    answer = staff.delete(f"{EXECUTORS}{world.executor.id}/")
    assert (answer.status_code, answer.json()["code"]) == (409, "executor_in_use")
    assert answer.json()["details"]["sessions"] == TaskSession.objects.filter(executor=world.executor).count() > 0
    assert Executor.objects.filter(id=world.executor.id).exists()


def test_sweep_lists_sessions_of_the_users_teams(world: World, api: APIClient) -> None:
    [listed] = api.get("/api/v1/sweeps/").json()["results"]
    assert (listed["sweep_id"], listed["trigger"], listed["examined"]) == (str(world.sweep.id), "boot", 1)
    shown = api.get(f"/api/v1/sweeps/{world.sweep.id}/").json()
    assert [(row["session_id"], row["rule"]) for row in shown["sessions"]] == [(str(world.session.id), "reattach")]
    assert client_of(world.stranger).get(f"/api/v1/sweeps/{world.sweep.id}/").json()["sessions"] == []


def manager(world: World) -> APIClient:
    """Return a client of an admin of the team."""
    admin = User.objects.create(username="manager")
    admin.groups.add(world.team)
    TeamRole.objects.create(user=admin, team=world.team, role=TeamRole.Role.ADMIN)
    return client_of(admin)


def test_admin_of_the_team_changes_what_the_settings_page_lets_them_change(
    world: World, staff: APIClient, api: APIClient
) -> None:
    profile = AgentProfile.objects.create(name="Ours", agent_type="codex", team=world.team, env={"KEY": "secret"})
    admin, address = manager(world), f"{PROFILES}{profile.pk}/"
    seen = admin.get(address).json()
    changed = admin.patch(address, {"model": "large", "version": seen["version"]}, format="json")
    assert (changed.status_code, changed.json()["model"]) == (200, "large")
    late = staff.patch(address, {"model": "small", "version": seen["version"]}, format="json")
    assert (late.status_code, late.json()["code"]) == (409, "settings_changed")
    refused: list[dict[str, object]] = [{"command": ["sh"]}, {"env": {}}, {"mcp_servers": []}]
    for body in refused:
        assert admin.patch(address, body, format="json").status_code == 403
    assert api.patch(address, {"model": "x"}, format="json").status_code == 403
    invalid: list[dict[str, object]] = [{"team": None}, {"agent_type": "demo"}, {"args": "x"}, {"gone_patterns": ["("]}]
    for body in invalid:
        assert staff.patch(address, body, format="json").status_code == 400
    assert staff.patch(address, {"env": {"KEY": "other"}, "args": ["-v"]}, format="json").status_code == 200
    profile.refresh_from_db()
    assert (profile.model, profile.command, profile.args, profile.env) == ("large", [], ["-v"], {"KEY": "other"})
    lines = LogEntry.objects.filter(object_id=str(profile.pk)).values_list("user__username", "change_message")
    assert set(lines) == {("manager", "Changed model."), ("staff", "Changed args, env.")}


def test_shared_profile_is_changed_by_staff_and_that_of_another_team_is_not_found(
    world: World, staff: APIClient
) -> None:
    shared = AgentProfile.objects.create(name="Shared", agent_type="codex")
    foreign = AgentProfile.objects.create(
        name="Foreign", agent_type="codex", team=Group.objects.create(name="Elsewhere")
    )
    admin = manager(world)
    assert admin.get(f"{PROFILES}{shared.pk}/").status_code == 200
    assert admin.patch(f"{PROFILES}{shared.pk}/", {"name": "Ours"}, format="json").status_code == 403
    assert admin.patch(f"{PROFILES}{foreign.pk}/", {"name": "Ours"}, format="json").status_code == 404
    assert staff.patch(f"{PROFILES}{shared.pk}/", {"name": "All of ours"}, format="json").status_code == 200


def test_admin_of_the_team_cannot_enable_what_staff_disabled(world: World, staff: APIClient) -> None:
    profile = AgentProfile.objects.create(name="Ours", agent_type="codex", team=world.team)
    admin, address = manager(world), f"{PROFILES}{profile.pk}/"
    for disables, enables, status in ((admin, admin, 200), (admin, staff, 200), (staff, admin, 409)):
        disabled = disables.patch(address, {"disabled": True}, format="json").json()
        assert disabled["disabled_by"]
        assert enables.patch(address, {"disabled": False}, format="json").status_code == status
    assert admin.patch(address, {"disabled": True}, format="json").json()["disabled_by"] == "staff"
    refused = admin.patch(address, {"disabled": False}, format="json").json()
    assert refused["code"] == "disabled_by_staff"
    assert staff.patch(address, {"disabled": False}, format="json").json()["disabled_by"] == ""


def test_staff_change_an_executor_over_the_version_that_they_saw(world: World, staff: APIClient) -> None:
    address = f"{EXECUTORS}{world.executor.pk}/"
    seen = staff.get(address).json()["version"]
    assert staff.patch(address, {"max_live": 3, "version": seen}, format="json").json()["max_live"] == 3
    late = staff.patch(address, {"name": "Renamed", "version": seen}, format="json")
    assert (late.status_code, late.json()["code"]) == (409, "settings_changed")
    for body in ({"runtime": "remote"}, {"config": {"nonsense": 1}}, {"name": ""}, {"is_default": False}):
        assert staff.patch(address, body, format="json").status_code == 400
    other = Executor.objects.create(name="Another", runtime="local_standalone")
    assert staff.patch(address, {"name": "Another"}, format="json").status_code == 400
    refused = staff.patch(address, {"max_live": 9, "disabled": True}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (409, "default_executor")
    assert staff.get(address).json()["max_live"] == 3, "nothing is changed by halves"
    made = staff.patch(f"{EXECUTORS}{other.pk}/", {"is_default": True}, format="json").json()
    assert made["is_default"] is True
    assert staff.patch(address, {"disabled": True}, format="json").json()["disabled_by"] == "staff"
