"""Team membership is managed by staff and by the team's own admins, and by nobody else."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from sessions_app.accounts import authorization
from sessions_app.accounts.models import TeamRole
from tests.accounts.conftest import browser_of
from tests.pages.world import World


@pytest.fixture
def admin(world: World) -> Client:
    """Return the browser session of an admin of Ada's team."""
    user = User.objects.create(username="grace")
    user.groups.add(world.team)
    TeamRole.objects.create(user=user, team=world.team, role=TeamRole.Role.ADMIN)
    return browser_of(user)


def page(world: World, tail: str = "") -> str:
    return f"/settings/teams/{world.team.pk}/{tail}"


def member(world: World, user: User, tail: str = "") -> str:
    return page(world, f"members/{user.pk}/{tail}")


@pytest.mark.parametrize("manager", ["admin", "staff"])
def test_invited_user_logs_in_by_link_and_sets_a_password(
    manager: str, world: World, request: pytest.FixtureRequest
) -> None:
    client: Client = request.getfixturevalue(manager)
    form = {"new-username": "mary", "new-email": "mary@example.org", "new-role": "viewer"}
    response = client.post(page(world, "invite/"), form)
    assert response.status_code == 201
    link = re.search(r"/login/[\w-]{43}/", response.text)
    assert link is not None
    mary = User.objects.get(username="mary")
    assert not mary.has_usable_password()
    assert not authorization.may_write(mary, world.team)
    browser = Client()
    assert browser.post(link[0]).headers["Location"] == "/settings/password/"
    assert "Ada&#x27;s team" in browser.get("/settings/teams/").text


@pytest.mark.parametrize("name", ["ada", "with a space", "", "x" * 151])
def test_existing_or_invalid_name_cannot_be_invited(name: str, admin: Client, world: World) -> None:
    before = User.objects.count()
    response = admin.post(page(world, "invite/"), {"new-username": name, "new-role": "member"})
    assert (response.status_code, User.objects.count()) == (422, before)
    assert "/login/" not in response.text


def test_team_admin_cannot_create_links_for_existing_accounts(admin: Client, world: World) -> None:
    assert admin.post(f"/settings/people/{world.bob.pk}/link/").status_code == 403
    assert admin.get("/settings/people/").status_code == 403


def test_existing_account_can_be_added_to_a_team(admin: Client, bob: Client, world: World) -> None:
    assert bob.get(page(world)).status_code == 404
    assert admin.post(page(world, "add/"), {"add-username": "bob", "add-role": "member"}).status_code == 302
    assert authorization.may_write(world.bob, world.team)
    assert bob.get(page(world)).status_code == 200
    response = admin.post(page(world, "add/"), {"add-username": "nobody", "add-role": "member"})
    assert response.status_code == 422
    assert "There is no account" in response.text


def test_role_can_be_changed_back_and_forth(admin: Client, world: World) -> None:
    for role, writes, manages in (("viewer", False, False), ("admin", True, True), ("member", True, False)):
        assert admin.post(member(world, world.ada), {"role": role}).status_code == 302
        assert authorization.may_write(world.ada, world.team) is writes
        assert authorization.may_manage(world.ada, world.team) is manages
    assert admin.post(member(world, world.ada), {"role": "owner"}).status_code == 422
    assert admin.post(member(world, world.bob), {"role": "admin"}).status_code == 404


def test_removed_member_loses_access(admin: Client, ada: Client, world: World) -> None:
    task = world.task()
    assert ada.get(f"/tasks/{task.id}/").status_code == 200
    assert admin.post(member(world, world.ada, "remove/")).status_code == 302
    assert ada.get(f"/tasks/{task.id}/").status_code == 404
    assert admin.post(member(world, world.ada, "remove/")).status_code == 404


def test_team_admin_who_leaves_loses_the_role(admin: Client, world: World) -> None:
    grace = User.objects.get(username="grace")
    TeamRole.objects.create(user=world.ada, team=world.team, role=TeamRole.Role.ADMIN)
    assert admin.post(member(world, grace, "remove/")).headers["Location"] == "/settings/teams/"
    assert admin.post(page(world, "add/"), {"add-username": "bob", "add-role": "admin"}).status_code == 404
    TeamRole.objects.create(user=grace, team=world.team, role=TeamRole.Role.ADMIN)
    assert not authorization.may_manage(grace, world.team)


def test_team_admin_has_no_rights_in_another_team(admin: Client, world: World) -> None:
    other = Group.objects.get(name="Bob's team")
    for tail in ("", "invite/", "add/", f"members/{world.bob.pk}/", f"members/{world.bob.pk}/remove/"):
        path = f"/settings/teams/{other.pk}/{tail}"
        assert (admin.post(path) if tail else admin.get(path)).status_code == 404, tail


@pytest.mark.parametrize("tail", ["invite/", "add/", "members/{}/", "members/{}/remove/"])
def test_member_sees_the_team_and_changes_nothing(tail: str, ada: Client, world: World) -> None:
    assert "ada" in ada.get(page(world)).text
    form = {"role": "admin", "add-username": "bob", "add-role": "admin", "new-username": "eve", "new-role": "admin"}
    assert ada.post(page(world, tail.format(world.ada.pk)), form).status_code == 403
    assert not TeamRole.objects.exists()


def test_staff_creates_a_team_with_a_unique_name(staff: Client) -> None:
    response = staff.post("/settings/teams/", {"name": "Compilers"})
    assert response.headers["Location"] == f"/settings/teams/{Group.objects.get(name='Compilers').pk}/"
    again = staff.post("/settings/teams/", {"name": "Compilers"})
    assert again.status_code == 422
    assert "already" in again.text


def test_staff_deactivates_and_activates_accounts_on_the_people_page(staff: Client, world: World) -> None:
    bob = browser_of(world.bob)
    path = f"/settings/people/{world.bob.pk}/active/"
    assert f'action="{path}"' in staff.get("/settings/people/").text
    staff.post(path, {"active": "0"})
    assert bob.get("/").status_code == 302, "bob is logged out"
    text = staff.get("/settings/people/").text
    assert "Inactive" in text
    assert f'aria-label="Role of {world.bob}"' not in text
    staff.post(path, {"active": "1"})
    world.bob.refresh_from_db()
    assert world.bob.is_active


def test_only_superusers_deactivate_staff_and_nobody_deactivates_themselves(staff: Client, world: World) -> None:
    colleague = User.objects.create(username="colleague", is_staff=True)
    operator = User.objects.get(username="operator")
    for user in (colleague, operator):
        assert staff.post(f"/settings/people/{user.pk}/active/", {"active": "0"}).status_code == 403
    root = User.objects.create(username="root", is_staff=True, is_superuser=True)
    browser = browser_of(root)
    browser.post(f"/settings/people/{colleague.pk}/active/", {"active": "0"})
    response: Any = browser.post(f"/settings/people/{root.pk}/active/", {"active": "0"}, follow=True)
    assert "You cannot deactivate your own account." in response.text
    assert list(User.objects.filter(is_active=False)) == [colleague]


def test_people_search_matches_name_and_email(staff: Client, world: World) -> None:
    User.objects.filter(pk=world.ada.pk).update(first_name="Countess", email="count@example.org")
    for words, there in (("ada", True), ("countess", True), ("count@", True), ("charles", False)):
        text = staff.get("/settings/people/", {"q": words}).text
        assert ("count@example.org" in text) is there
        assert ("No matching accounts" in text) is not there


def test_last_admin_is_neither_removed_nor_demoted_by_anybody(admin: Client, staff: Client, world: World) -> None:
    grace = User.objects.get(username="grace")
    for client in (admin, staff):
        assert "only admin" in client.get(member(world, grace)).text
        for path, form in ((member(world, grace), {"role": "viewer"}), (member(world, grace, "remove/"), {})):
            assert "Make another member an admin first" in client.post(path, form, follow=True).text
    assert authorization.may_manage(grace, world.team)
    TeamRole.objects.create(user=world.ada, team=world.team, role=TeamRole.Role.ADMIN)
    User.objects.filter(pk=world.ada.pk).update(is_active=False)
    assert "Make another member an admin first" in admin.post(member(world, grace, "remove/"), follow=True).text, (
        "ada cannot log in"
    )
    User.objects.filter(pk=world.ada.pk).update(is_active=True)
    assert admin.post(member(world, grace), {"role": "viewer"}).status_code == 302
    assert not authorization.may_manage(grace, world.team)


def test_change_of_a_role_that_the_page_did_not_show_is_refused(admin: Client, world: World) -> None:
    TeamRole.objects.create(user=world.ada, team=world.team, role=TeamRole.Role.VIEWER)
    for path, form in ((member(world, world.ada), {"role": "admin"}), (member(world, world.ada, "remove/"), {})):
        text = admin.post(path, {**form, "seen": "member"}, follow=True).text
        assert "Someone else has changed the role of this member" in text
    assert TeamRole.objects.get(user=world.ada).role == "viewer"
    assert admin.post(member(world, world.ada), {"role": "admin", "seen": "viewer"}).status_code == 302


def test_member_is_not_added_twice_with_another_role(admin: Client, world: World) -> None:
    answer = admin.post(page(world, "add/"), {"add-username": "grace", "add-role": "viewer"})
    assert (answer.status_code, "is in this team already" in answer.text) == (422, True)
    assert TeamRole.objects.get(user__username="grace").role == "admin"


def test_team_lists_who_changed_its_members(admin: Client, ada: Client, world: World) -> None:
    admin.post(page(world, "add/"), {"add-username": "bob", "add-role": "viewer"})
    admin.post(member(world, world.bob), {"role": "member", "seen": "viewer"})
    admin.post(member(world, world.bob), {"role": "member", "seen": "member"})  # changes nothing
    admin.post(member(world, world.bob, "remove/"), {"seen": "member"})
    text = ada.get(page(world)).text
    lines = ("Member removed: bob", "Role changed: bob, member", "Member added: bob, viewer")
    assert [text.count(line) for line in lines] == [1, 1, 1]
    assert [text.index(line) for line in lines] == sorted(text.index(line) for line in lines)


def test_members_page_shows_own_teams_and_what_their_members_may_do(
    admin: Client, ada: Client, bob: Client, staff: Client, world: World
) -> None:
    world.team.permissions.add(Permission.objects.get(codename="merge_branches"))
    text = ada.get("/settings/members/").text
    assert "grace" in text
    assert "Role of" not in text
    assert 'aria-label="Role of ada"' in admin.get("/settings/members/").text
    assert "grace" not in bob.get("/settings/members/").text
    assert 'aria-label="Role of bob"' in staff.get("/settings/members/").text
    assert "all members may also merge branches of sessions." in ada.get(page(world)).text
    assert ada.get(member(world, world.ada)).status_code == 403
    assert admin.get(member(world, world.bob)).status_code == 404
    back = admin.post(member(world, world.ada), {"role": "viewer", "next": "/settings/members/"})
    assert back.headers["Location"] == "/settings/members/"


def test_members_of_many_teams_take_no_more_queries(
    staff: Client, world: World, django_assert_num_queries: Any
) -> None:
    with CaptureQueriesContext(connection) as few:
        staff.get("/settings/members/")
    for number in range(5):
        team = Group.objects.create(name=f"team {number}")
        for name in ("a", "b"):
            User.objects.create(username=f"{name}{number}").groups.add(team)
    with django_assert_num_queries(len(few)):
        staff.get("/settings/members/")
