"""The members of a team in a browser, on a phone and by keyboard."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from sessions_app.accounts.models import TeamRole
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import Visit, navigating
from tests.pages.world import World

pytestmark = pytest.mark.browser


def test_admin_changes_a_role_and_reads_what_happens_before_removing_a_member(visit: Any, world: World) -> None:
    TeamRole.objects.create(user=world.ada, team=world.team, role=TeamRole.Role.ADMIN)
    grace = User.objects.create(username="grace")
    grace.groups.add(world.team)
    ada: Visit = visit(viewport={"width": 390, "height": 844}, color_scheme="dark")
    page = ada.open("/settings/profile/")
    with navigating(page):
        page.get_by_role("navigation", name="Settings").get_by_role("link", name="Members").press("Enter")
    page.get_by_label("Role of grace").select_option("viewer")
    with navigating(page):
        page.get_by_role("button", name="Set role of grace").press("Enter")
    expect(page.get_by_text("grace is viewer of")).to_be_visible()
    expect(page.get_by_role("heading", name="Members", exact=True)).to_be_visible()
    with navigating(page):
        page.get_by_role("link", name="Remove… ada").click()
    expect(page.get_by_text("ada is the team’s only admin")).to_be_visible()
    expect(page.get_by_role("button", name="Remove ada")).to_have_count(0)
    page.goto("/settings/members/")
    with navigating(page):
        page.get_by_role("link", name="Remove… grace").press("Enter")
    expect(page.get_by_text("Nothing that runs in this team has their rights.")).to_be_visible()
    assert accessibility_problems(page, "a member") == []
    with navigating(page):
        page.get_by_role("button", name="Remove grace").press("Enter")
    expect(page.get_by_text("grace is no longer in")).to_be_visible()
    expect(page.get_by_text("Member removed: grace")).to_be_visible()
    assert not grace.groups.exists()
    assert ada.unexpected() == []
