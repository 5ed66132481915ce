"""Members write, viewers read, strangers find nothing (rule 39)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Group, Permission, User
from django.test import Client

from executors_app import plugins
from sessions_app.accounts import authorization
from sessions_app.accounts.models import TeamRole
from tests.rights.world import Cast, browsers, make_cast


@pytest.fixture
def cast(db: None) -> Cast:
    return make_cast()


@pytest.fixture
def viewer(cast: Cast) -> Client:
    return browsers(cast)["viewer"]


def person(cast: Cast, role: str) -> Any:
    return cast.people[role] or AnonymousUser()


@pytest.mark.parametrize(
    ("role", "writes"),
    [("anonymous", False), ("stranger", False), ("viewer", False), ("member", True), ("staff", False)],
)
def test_only_members_write_in_a_team(cast: Cast, role: str, writes: bool) -> None:
    user = person(cast, role)
    assert authorization.may_write(user, cast.world.team) is writes
    assert authorization.may_write(user, cast.world.team.pk) is writes
    assert authorization.may_write_session(user, cast.world.session) is writes


@pytest.mark.parametrize(("role", "somewhere"), [("stranger", True), ("viewer", False), ("member", True)])
def test_roles_that_write_in_any_team(cast: Cast, role: str, somewhere: bool) -> None:
    assert authorization.may_write_somewhere(person(cast, role)) is somewhere


def test_role_gives_nothing_outside_the_team(cast: Cast) -> None:
    stranger = person(cast, "stranger")
    TeamRole.objects.create(user=stranger, team=cast.world.team, role=TeamRole.Role.MEMBER)
    assert not authorization.may_write(stranger, cast.world.team)


def test_role_counts_only_in_its_own_team(cast: Cast) -> None:
    viewer, other = person(cast, "viewer"), Group.objects.get(name="other team")
    viewer.groups.add(other)
    assert authorization.may_write(viewer, other)
    assert not authorization.may_write(viewer, cast.world.team)


def test_member_role_equals_no_role(cast: Cast) -> None:
    TeamRole.objects.update(role=TeamRole.Role.MEMBER)
    assert authorization.may_write(person(cast, "viewer"), cast.world.team)


def test_inactive_user_has_no_rights(cast: Cast) -> None:
    User.objects.filter(username="member").update(is_active=False)
    member = User.objects.get(username="member")
    assert not authorization.may_write(member, cast.world.team)


@pytest.mark.parametrize("team", ["viewed", "written"])
def test_viewer_of_one_team_creates_tasks_in_another(cast: Cast, viewer: Client, team: str) -> None:
    own = Group.objects.create(name="own")
    person(cast, "viewer").groups.add(own)
    request = {"title": "x", "team": cast.world.team.pk if team == "viewed" else own.pk}
    answer = viewer.post("/api/v1/tasks/", request, content_type="application/json")
    assert answer.status_code == (403 if team == "viewed" else 201)
    assert answer.json().get("code") == ("permission_denied" if team == "viewed" else None)


def test_task_without_team_goes_to_the_users_only_writable_team(cast: Cast, viewer: Client) -> None:
    own = Group.objects.create(name="own")
    person(cast, "viewer").groups.add(own)
    made = viewer.post("/api/v1/tasks/", {"title": "x"}, content_type="application/json").json()
    assert made["team"] == own.pk


def test_refusal_of_a_viewer_has_a_reason(cast: Cast, viewer: Client) -> None:
    answer = viewer.post(cast.world.url("stop/"))
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")


LOOKING = {"Show", "Close", "Search", ""}
"""Buttons that only show something and change nothing for others. Without a text: a pin of the user's own list."""
BUTTON = re.compile(r'<button(?![^>]*(?:disabled|role="tab"|type="button"))[^>]*>([^<]*)')


def test_pages_of_a_viewer_have_no_button_that_would_be_refused(cast: Cast, viewer: Client) -> None:
    world = cast.world
    pages = {
        "board": "/",
        "task": f"/tasks/{world.task.id}/",
        "session": f"/tasks/{world.task.id}/sessions/{world.session.id}/",
    }
    for name, path in pages.items():
        response = viewer.get(path)
        assert response.status_code == 200
        assert set(BUTTON.findall(response.text.partition("<main")[2])) <= LOOKING, name
    assert "You are a viewer of this team" in viewer.get(pages["session"]).text


def test_pages_of_a_member_have_those_buttons(cast: Cast) -> None:
    member = browsers(cast)["member"]
    text = member.get(f"/tasks/{cast.world.task.id}/sessions/{cast.world.session.id}/").text
    assert {"Stop", "Allow", "Send again", "Continue", "Withdraw", "Send"} <= set(BUTTON.findall(text))


def test_viewer_who_opens_a_page_starts_no_agent(cast: Cast, viewer: Client) -> None:
    world = cast.world
    world.session.intents.all().delete()
    path = f"/tasks/{world.task.id}/sessions/{world.session.id}/live/"
    assert browsers(cast)["member"].get(path).json()["start_on_open"] is True
    body = viewer.get(path).json()
    assert (body["start_on_open"], body["can_prompt"]) == (False, False)


def test_board_offers_repositories_of_writable_teams(cast: Cast, viewer: Client) -> None:
    own = Group.objects.create(name="own")
    person(cast, "viewer").groups.add(own)
    assert cast.world.repository not in viewer.get("/").context["form"].fields["repository"].queryset
    assert cast.world.repository in browsers(cast)["member"].get("/").context["form"].fields["repository"].queryset


class TestShellsAndFilesWithoutIsolation:
    """The runtime of these tests shares the machine with the control plane."""

    def test_staff_of_the_team_may_use_them(self, cast: Cast) -> None:
        assert not authorization.may_operate(person(cast, "member"), cast.world.session)
        assert not authorization.may_operate(person(cast, "staff"), cast.world.session)
        assert authorization.may_operate(cast.world.staff, cast.world.session)

    def test_team_with_the_right_may_use_them(self, cast: Cast) -> None:
        given = Permission.objects.get(codename="operate_unisolated")
        Group.objects.get(name="other team").permissions.add(given)
        person(cast, "member").user_permissions.add(given)
        assert not authorization.may_operate(person(cast, "member"), cast.world.session)
        cast.world.team.permissions.add(given)
        assert authorization.may_operate(person(cast, "member"), cast.world.session)
        assert not authorization.may_operate(person(cast, "viewer"), cast.world.session)

    def test_members_may_use_them_where_agents_are_isolated(self, cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(type(plugins.runtime("local_standalone")), "isolated", True)
        assert authorization.may_operate(person(cast, "member"), cast.world.session)
        assert not authorization.may_operate(person(cast, "viewer"), cast.world.session)
