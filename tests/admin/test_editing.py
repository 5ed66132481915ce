"""What staff can edit in the admin, and what nobody can: states, the record, stored secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db.models.signals import pre_save
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from executors_app.machine.git.repository_git import run_git
from executors_app.models import AgentProfile, Executor
from executors_app.staff_admin import ReadOnlyModelAdmin
from sessions_app.accounts.models import LoginLink
from sessions_app.models import Repository, TaskSession
from tests.admin.everything import SECRET, browser, make_set, staff, superuser

PROFILE = {"name": "demo", "agent_type": "demo", "command": "", "args": "", "permission_mode": "ask"}


@pytest.fixture
def staff_browser(db: None) -> Client:
    return browser(staff())


def change(staff_browser: Client, row: Any, **form: Any) -> Any:
    url = reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])
    return staff_browser.post(url, form)


def errors(answer: Any) -> dict[str, list[str]]:
    return dict(answer.context["adminform"].form.errors)


@pytest.fixture
def profile(db: None) -> AgentProfile:
    return AgentProfile.objects.create(
        name="demo",
        agent_type="demo",
        env={"API_KEY": SECRET, "OLD": "x"},
        mcp_servers=[{"name": "tools", "k": SECRET}],
    )


def test_variables_are_set_and_removed_without_being_shown(staff_browser: Client, profile: AgentProfile) -> None:
    answer = change(staff_browser, profile, **PROFILE, change_env="NEW = y\n", remove_env="OLD")
    assert answer.status_code == 302
    profile.refresh_from_db()
    assert profile.env == {"API_KEY": SECRET, "NEW": "y"}
    assert profile.mcp_servers == [{"name": "tools", "k": SECRET}]


def test_empty_field_keeps_the_secrets(staff_browser: Client, profile: AgentProfile) -> None:
    assert change(staff_browser, profile, **{**PROFILE, "name": "renamed"}).status_code == 302
    profile.refresh_from_db()
    assert (profile.name, profile.env["API_KEY"], len(profile.mcp_servers)) == ("renamed", SECRET, 1)


def test_policy_for_processes_left_running_is_set_and_cleared(staff_browser: Client, profile: AgentProfile) -> None:
    for policy in ("end", ""):
        assert change(staff_browser, profile, **PROFILE, background_policy=policy).status_code == 302
        profile.refresh_from_db()
        assert profile.background_policy == policy


def test_mcp_servers_are_replaced_as_a_whole(staff_browser: Client, profile: AgentProfile) -> None:
    assert change(staff_browser, profile, **PROFILE, change_mcp_servers="[]").status_code == 302
    profile.refresh_from_db()
    assert (profile.mcp_servers, profile.env["API_KEY"]) == ([], SECRET)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("change_env", "entered-secret"),
        ("change_env", "A B=entered-secret"),
        ("change_env", "A=1\n=entered-secret"),
        ("change_mcp_servers", '[{"key": "entered-secret"}]'),
        ("change_mcp_servers", '"entered-secret"'),
        ("command", "'entered-secret"),
        ("additional_directories", "relative/path"),
        ("gone_patterns", "("),
        ("secret_hosts", "no colon"),
        ("agent_type", "nothing"),
    ],
)
def test_invalid_value_is_refused_beside_its_field(
    staff_browser: Client, profile: AgentProfile, field: str, value: str
) -> None:
    answer = change(staff_browser, profile, **{**PROFILE, field: value})
    assert answer.status_code == 200
    assert list(errors(answer)) == [field]
    assert not field.startswith("change_") or "entered-secret" not in answer.text
    profile.refresh_from_db()
    assert (profile.env, profile.command) == ({"API_KEY": SECRET, "OLD": "x"}, [])


def test_profile_with_undecryptable_secrets_can_be_viewed_and_renamed(profile: AgentProfile, settings: Any) -> None:
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS, old = "another key", [], settings.SECRET_KEY
    root = browser(superuser())
    url = reverse("admin:executors_app_agentprofile_change", args=[profile.pk])
    assert "cannot be decrypted with the current keys" in root.get(url).text
    assert change(root, profile, **{**PROFILE, "name": "renamed"}).status_code == 302
    settings.SECRET_KEY = old
    assert AgentProfile.objects.get().env == {"API_KEY": SECRET, "OLD": "x"}
    assert AgentProfile.objects.get().name == "renamed"


@pytest.mark.parametrize("field", ["change_env", "remove_env"])
def test_variable_is_not_changed_beside_others_that_cannot_be_decrypted(
    profile: AgentProfile, settings: Any, field: str
) -> None:
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS, old = "another key", [], settings.SECRET_KEY
    answer = change(browser(superuser()), profile, **{**PROFILE, field: {"change_env": "NEW=1"}.get(field, "OLD")})
    assert answer.status_code == 200
    assert "changing one would drop the others" in errors(answer)[field][0]
    settings.SECRET_KEY = old
    assert AgentProfile.objects.get().env == {"API_KEY": SECRET, "OLD": "x"}


def test_lists_of_a_profile_are_written_as_words_and_lines(staff_browser: Client, profile: AgentProfile) -> None:
    lists = {
        "command": "my-agent 'two words'",
        "args": "--fast",
        "additional_directories": "/srv/one\n/srv/two\n",
        "gone_patterns": "no such (conversation|session)",
        "secret_hosts": "API_KEY: docs.example, tools.example:8443",
    }
    assert change(staff_browser, profile, **{**PROFILE, **lists}).status_code == 302
    profile.refresh_from_db()
    assert (profile.command, profile.args) == (["my-agent", "two words"], ["--fast"])
    assert profile.additional_directories == ["/srv/one", "/srv/two"]
    assert profile.secret_hosts == {"API_KEY": ["docs.example", "tools.example:8443"]}
    shown = staff_browser.get(reverse("admin:executors_app_agentprofile_change", args=[profile.pk]))
    form = shown.context["adminform"].form
    assert {name: form[name].value() for name in lists} == {**lists, "additional_directories": "/srv/one\n/srv/two"}


def test_agent_type_without_a_command_requires_one(staff_browser: Client, profile: AgentProfile) -> None:
    answer = change(staff_browser, profile, **{**PROFILE, "agent_type": "custom_acp"})
    assert list(errors(answer)) == ["command"]


@pytest.mark.parametrize(
    ("agent_type", "says"), [("claude_code", "ANTHROPIC_API_KEY"), ("custom_acp", "has no command of its own")]
)
def test_profile_form_says_what_its_agent_type_needs(
    staff_browser: Client, profile: AgentProfile, agent_type: str, says: str
) -> None:
    AgentProfile.objects.update(agent_type=agent_type)
    assert says in staff_browser.get(reverse("admin:executors_app_agentprofile_change", args=[profile.pk])).text


EXECUTOR_ADD = "/admin/executors_app/executor/add/"


@pytest.mark.parametrize(
    ("runtime", "settings", "wrong"),
    [
        ("local_standalone", {}, []),
        ("local_docker", {"local_docker-memory_mb": "512"}, []),
        ("local_docker", {"local_docker-memory_mb": "much"}, ["local_docker-memory_mb"]),
        ("local_docker", {"local_docker-cpus": "-1"}, ["local_docker-cpus"]),
        ("local_docker", {"local_docker-subnets": "8.8.8.0/24"}, ["__all__"]),
        ("local_standalone", {"local_docker-image": "x"}, ["local_docker-image"]),
        ("remote", {"remote-url": "https://build.example:8443"}, ["remote-token_file"]),
        ("remote", {"remote-repositories": "/srv/one"}, ["remote-repositories", "remote-token_file", "remote-url"]),
        ("nowhere", {}, ["runtime"]),
    ],
)
def test_executor_has_a_field_for_each_setting_of_its_runtime(
    staff_browser: Client, runtime: str, settings: dict[str, str], wrong: list[str]
) -> None:
    answer = staff_browser.post(EXECUTOR_ADD, {"name": "there", "runtime": runtime, **settings})
    if wrong:
        assert sorted(errors(answer)) == wrong
    assert answer.status_code == (200 if wrong else 302)
    assert Executor.objects.count() == (not wrong)


def test_settings_of_an_executor_are_changed_but_not_its_runtime(staff_browser: Client) -> None:
    config = {"docker_host": "ssh://kandev@build", "publish": "10.0.0.2", "memory_mb": 512, "cpus": 2}
    executor = Executor.objects.create(name="there", runtime="remote_docker", config=config)
    fields = {f"remote_docker-{name}": str(value) for name, value in config.items()}
    fields |= {"remote_docker-cpus": "", "remote_docker-memory_mb": "1024", "runtime": "local_standalone"}
    assert change(staff_browser, executor, name="there", **fields).status_code == 302
    executor.refresh_from_db()
    del config["cpus"]
    assert (executor.runtime, executor.config) == ("remote_docker", {**config, "memory_mb": 1024})


def test_renamed_executor_keeps_settings_that_have_no_field(staff_browser: Client) -> None:
    executor = Executor.objects.create(name="here", runtime="local_docker", config={"later": 1})
    change(staff_browser, executor, name="renamed")
    executor.refresh_from_db()
    assert executor.config == {"later": 1}


@pytest.fixture
def repository(tmp_path: Path, settings: Any) -> Iterator[Path]:
    settings.KANDEV_REPOSITORY_ROOTS = (str(tmp_path),)
    run_git(tmp_path, "init", "--quiet", "--initial-branch=trunk")
    yield tmp_path


def add_repository(staff_browser: Client, path: str) -> HttpResponse:
    team, _ = Group.objects.get_or_create(name="team")
    form = {"name": "engine", "team": team.pk, "path": path}
    return staff_browser.post(reverse("admin:sessions_app_repository_add"), form)  # type: ignore[return-value]


def test_repository_is_added_with_its_checked_out_branch(staff_browser: Client, repository: Path) -> None:
    assert add_repository(staff_browser, str(repository)).status_code == 302
    row = Repository.objects.get()
    assert (row.path, row.default_branch) == (str(repository.resolve()), "trunk")


@pytest.mark.parametrize("path", ["relative", "/", "/nowhere", "{inside}/nothing"])
def test_repository_outside_the_allowed_folders_is_refused(staff_browser: Client, repository: Path, path: str) -> None:
    answer = add_repository(staff_browser, path.format(inside=repository))
    assert list(errors(answer)) == ["path"]
    assert not Repository.objects.exists()


def test_path_and_team_of_a_repository_cannot_be_changed(staff_browser: Client) -> None:
    row = make_set("a").task.repository
    assert row is not None
    change(
        staff_browser,
        row,
        name="renamed",
        path="/etc",
        team=Group.objects.create(name="other").pk,
        default_branch="main",
    )
    fresh = Repository.objects.get()
    assert (fresh.name, fresh.path, fresh.team) == ("renamed", row.path, row.team)


def test_states_cannot_be_edited(staff_browser: Client) -> None:
    session = make_set("a")
    form = {
        "policy": "manual",
        "state": "COMPLETED",
        "work_state": "done",
        "desired_state": "stopped",
        "last_seq": "99",
    }
    assert change(staff_browser, session, **form).status_code == 302
    before = {name: getattr(session, name) for name in ("state", "work_state", "desired_state")}
    session.refresh_from_db()
    assert session.policy == "manual"
    assert {name: getattr(session, name) for name in before} == before
    assert session.last_seq == session.events.count()
    assert change(staff_browser, session.task, title="New", state="DONE").status_code == 302
    session.task.refresh_from_db()
    assert (session.task.title, session.task.state) == ("New", "TODO")


def test_edit_does_not_overwrite_concurrent_supervisor_writes(staff_browser: Client) -> None:
    session = make_set("a")

    def supervise(sender: Any, instance: Any, **_: Any) -> None:
        TaskSession.objects.filter(id=instance.id).update(state="RUNNING", last_seq=7)

    pre_save.connect(supervise, sender=TaskSession)
    try:
        assert change(staff_browser, session, policy="manual").status_code == 302
    finally:
        pre_save.disconnect(supervise, sender=TaskSession)
    session.refresh_from_db()
    assert (session.policy, session.state, session.last_seq) == ("manual", "RUNNING", 7)


@pytest.mark.parametrize(
    "model",
    [model for model, shown in admin.site._registry.items() if isinstance(shown, ReadOnlyModelAdmin)],
    ids=lambda model: model.__name__,
)
def test_record_cannot_be_changed_even_by_a_superuser(db: None, model: Any) -> None:
    make_set("a")
    root, row = browser(superuser()), model._default_manager.first()
    base = f"admin:{model._meta.app_label}_{model._meta.model_name}"
    count = model._default_manager.count()
    pages = [reverse(f"{base}_{page}", args=[row.pk]) for page in ("change", "delete")]
    for url in pages:
        assert root.post(url, {"post": "yes"}).status_code == 403
    if model.__name__ != "SweepRequest":
        assert root.post(reverse(f"{base}_add"), {}).status_code == 403
    root.post(reverse(f"{base}_changelist"), {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
    assert model._default_manager.count() == count


@pytest.mark.parametrize("page", ["auth_user", "auth_group"])
def test_users_and_groups_require_their_permissions(staff_browser: Client, page: str) -> None:
    url = reverse(f"admin:{page}_changelist")
    assert staff_browser.get(url).status_code == 403
    assert browser(superuser()).get(url).status_code == 200


def test_team_members_and_viewers_are_edited_on_one_page(db: None) -> None:
    root, session = browser(superuser()), make_set("a")
    team, person = session.task.team, staff()
    form: dict[str, Any] = {"name": team.name}
    for prefix in ("User_groups", "roles"):
        form |= {f"{prefix}-TOTAL_FORMS": 1, f"{prefix}-INITIAL_FORMS": 0}
    form |= {"User_groups-0-user": person.pk, "User_groups-0-group": team.pk}
    form |= {"roles-0-user": person.pk, "roles-0-team": team.pk, "roles-0-role": "viewer"}
    assert change(root, team, **form).status_code == 302
    assert person.groups.get() == team
    assert person.team_roles.get().role == "viewer"


def test_admin_login_redirects_to_the_login_page(db: None) -> None:
    answer = Client().get("/admin/login/?next=/admin/sessions_app/task/")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/login/?next=/admin/sessions_app/task/")
    assert Client().post("/admin/login/", {"username": "x", "password": "y"}).status_code == 302
    assert browser(staff()).get("/admin/login/").headers["Location"] == "/admin/"
    member = make_set("a").task.created_by
    assert member is not None
    assert browser(member).get("/admin/login/?next=/admin/").status_code == 403


def test_list_of_login_links_shows_no_secret(staff_browser: Client) -> None:
    secret = LoginLink.mint(User.objects.get(username="staff"))
    assert secret not in staff_browser.get(reverse("admin:accounts_loginlink_changelist")).text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[{"name": "x",\n "url" 4}]', "Expecting &#x27;:&#x27; delimiter (line 2, column 8)."),
        ("{'name': 1}", "Expecting property name enclosed in double quotes (line 1, column 2)."),
        ("[] rest", "Extra data (line 1, column 4)."),
        ("{}", "Expected a list of objects"),
    ],
)
def test_invalid_json_is_refused_with_its_position(
    staff_browser: Client, profile: AgentProfile, text: str, says: str
) -> None:
    answer = change(staff_browser, profile, **PROFILE, change_mcp_servers=text)
    assert answer.status_code == 200
    assert says in answer.text


def test_runtimes_are_shown_in_words(staff_browser: Client) -> None:
    Executor.objects.create(name="here", runtime="local_standalone")
    Executor.objects.create(name="there", runtime="local_docker")
    listed = staff_browser.get("/admin/executors_app/executor/").text
    assert listed.count("On this machine") == 2, "in its row and in the filter"
    assert "local_standalone</" not in listed
    assert "On this machine (local_standalone)" in staff_browser.get("/admin/executors_app/executor/add/").text
