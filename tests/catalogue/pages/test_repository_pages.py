"""The settings pages of repositories, without JavaScript."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sessions_app.accounts.models import TeamRole
from sessions_app.catalogue.services import repository_settings
from sessions_app.models import Repository, RepositoryRemote
from tests.executors.repositories import make_repository, run_git
from tests.pages.world import World
from tests.supervisor.rows import fresh

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]

LIST = "/settings/repositories/"


@pytest.fixture
def on_disk(world: World, tmp_path: Path, settings: Any) -> Repository:
    settings.KANDEV_REPOSITORY_ROOTS = (str(tmp_path),)
    path = make_repository(tmp_path / "project")
    row: Repository = Repository.objects.create(name="project", team=world.team, path=str(path))
    return row


def page_of(row: Repository) -> str:
    return f"{LIST}{row.pk}/"


def make_admin(world: World) -> None:
    TeamRole.objects.create(user=world.ada, team=world.team, role=TeamRole.Role.ADMIN)


def test_member_sees_repositories_what_is_broken_and_whom_to_ask(
    ada: Client, bob: Client, world: World, on_disk: Repository
) -> None:
    User.objects.create(username="operator", is_staff=True)
    text = ada.get(LIST).text
    for shown in ("engine", "Not found on the disk", "/srv/engine", "project", "Usable", "Ask operator."):
        assert shown in text
    assert "Add a repository" not in text
    assert ada.post(LIST, {"team": world.team.pk, "path": on_disk.path}).status_code == 403
    assert "engine" not in bob.get(LIST).text
    assert bob.get(page_of(on_disk)).status_code == 404
    page = ada.get(page_of(on_disk)).text
    assert "<form" not in page[page.index("<h2>project") :]
    assert ada.post(page_of(on_disk), {"action": "default"}).status_code == 403


def test_detached_head_leaves_the_default_branch_unknown(ada: Client, on_disk: Repository) -> None:
    assert "<code>main</code>" in ada.get(page_of(on_disk)).text
    run_git(Path(on_disk.path), "checkout", "--quiet", "--detach")
    page = ada.get(page_of(on_disk)).text
    assert "Unknown: no branch is checked out there" in page
    assert "<code>main</code>" not in page
    assert ">Unknown<" in ada.get(LIST).text


def test_problem_is_named_with_the_next_step(ada: Client, on_disk: Repository) -> None:
    shutil.rmtree(on_disk.path)
    page = ada.get(page_of(on_disk)).text
    assert "Not found on the disk" in page
    assert "remove it from the team" in page


def test_staff_adds_a_repository_by_the_rule_of_the_admin(staff: Client, world: World, tmp_path: Path) -> None:
    answer = staff.post(LIST, {"team": world.team.pk, "path": "relative"})
    assert (answer.status_code, "Enter an absolute path." in answer.text) == (422, True)
    path = make_repository(tmp_path / "new")
    assert staff.post(LIST, {"team": world.team.pk, "path": str(path)}).status_code == 302
    row = Repository.objects.get(path=str(path))
    assert (row.name, row.default_branch) == ("new", "main")
    assert f"Opened to the team {world.team.name}" in staff.get(page_of(row)).text.replace("&#x27;", "'")


def test_list_of_many_repositories_takes_no_more_queries(
    ada: Client, world: World, django_assert_num_queries: Any
) -> None:
    with CaptureQueriesContext(connection) as few:
        ada.get(LIST)
    for number in range(5):
        row = Repository.objects.create(name=f"more {number}", team=world.team, path=f"/srv/more/{number}")
        RepositoryRemote.objects.create(repository=row, address="https://example.org/project.git", token="x")
        world.task(repository=row)
    with django_assert_num_queries(len(few)):
        ada.get(LIST)


def test_form_keeps_what_was_entered_when_somebody_else_was_first(ada: Client, world: World) -> None:
    make_admin(world)
    row = world.repository
    seen = {"action": "save", "name": "mine", "version": "of another state"}
    answer = ada.post(page_of(row), seen)
    assert answer.status_code == 422
    assert "Someone else has changed this repository" in answer.text
    assert 'value="mine"' in answer.text
    assert fresh(row).name == "engine"
    assert ada.post(page_of(row), {"action": "other"}).status_code == 400
    assert ada.post(page_of(row), {"action": "remove"}).status_code == 302
    assert fresh(row).removed_at is None, "what depends on it was not seen"


def test_repository_that_somebody_removes_while_its_branches_are_looked_up_is_no_error(
    ada: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_admin(world)
    row = fresh(world.repository)
    version = repository_settings.repository_version(row)

    def remove_meanwhile(found: Repository, _values: Any) -> None:
        Repository.objects.filter(pk=found.pk).update(removed_at=timezone.now())

    monkeypatch.setattr(repository_settings, "_check_branches", remove_meanwhile)
    body = {"action": "save", "name": "motor", "default_branch": "", "default_base": "", "version": version}
    page = ada.post(page_of(row), body, follow=True)
    assert "The repository was removed from the team." in page.text
    assert fresh(row).name == row.name
