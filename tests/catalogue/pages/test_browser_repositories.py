"""The settings of a repository in a browser, on a phone and by keyboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from sessions_app.accounts.models import TeamRole
from sessions_app.models import Repository
from tests.executors.repositories import make_repository, run_git
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import Visit, navigating
from tests.pages.world import World
from tests.supervisor.rows import fresh

pytestmark = pytest.mark.browser


def test_admin_of_a_team_walks_through_the_settings(visit: Any, world: World, tmp_path: Path, settings: Any) -> None:
    settings.KANDEV_REPOSITORY_ROOTS = (str(tmp_path),)
    path = make_repository(tmp_path / "project")
    run_git(path, "branch", "next")
    on_disk = Repository.objects.create(name="project", team=world.team, path=str(path))
    TeamRole.objects.create(user=world.ada, team=world.team, role=TeamRole.Role.ADMIN)
    ada: Visit = visit(viewport={"width": 390, "height": 844}, color_scheme="dark")
    page = ada.open("/settings/profile/")
    page.on("dialog", lambda dialog: dialog.accept())
    with navigating(page):
        page.get_by_role("navigation", name="Settings").get_by_role("link", name="Repositories").click()
    expect(page.get_by_role("heading", name="Repositories", exact=True)).to_be_visible()
    with navigating(page):
        page.get_by_role("link", name="project", exact=True).press("Enter")
    page.get_by_label("Name").fill("Engine room")
    page.get_by_label("New tasks start from").fill("nowhere")
    with navigating(page):
        page.get_by_role("button", name="Save").press("Enter")
    expect(page.get_by_text("no branch, tag or commit of this name")).to_be_visible()
    expect(page.get_by_label("Name")).to_have_value("Engine room")
    page.get_by_label("New tasks start from").fill("next")
    with navigating(page):
        page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="Engine room")).to_be_visible()
    with navigating(page):
        page.get_by_role("button", name="Make default").click()
    expect(page.get_by_text("is now the default")).to_be_visible()
    assert accessibility_problems(page, "a repository") == []
    with navigating(page):
        page.get_by_role("button", name="Remove from").click()
    expect(page.get_by_text("was removed from")).to_be_visible()
    expect(page.get_by_role("link", name="Engine room", exact=True)).to_have_count(0)
    assert accessibility_problems(page, "the repositories") == []
    row = fresh(on_disk)
    assert (row.name, row.default_base, row.removed_at is None) == ("Engine room", "next", False)
    assert ada.unexpected("422") == []
