"""The panels of the workspace in a real browser, with a real agentctl behind them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from playwright.sync_api import expect

from executors_app.models import ExecutorRunning
from sessions_app.models import TaskSession
from tests.agentctl.processes import REAL, Place
from tests.agentctl.running import TOKEN
from tests.executors.repositories import run_git
from tests.pages.browsers import NO_SOCKET
from tests.pages.world import World, path_of
from tests.workspace.served import make_repository_in

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A workspace that a real agentctl serves."""
    made = Place(tmp_path)
    make_repository_in(made.workspace)
    with made.agentctl(REAL):
        yield made


@pytest.fixture
def session(world: World, place: Place) -> TaskSession:
    """A session of that agentctl's."""
    made = world.running_session()
    execution = ExecutorRunning.objects.get(session=made)
    execution.agentctl_url, execution.auth_token = place.ready()["url"], TOKEN
    execution.save()
    return made


def test_changes_are_shown_read_and_committed(visit: Any, session: TaskSession, place: Place) -> None:
    (place.workspace / "README").write_text("changed <b>\n")
    (place.workspace / "new").write_text("x")
    ada = visit()
    page = ada.open(path_of(session))
    page.locator("#changes summary").click()
    expect(page.get_by_text("Not staged (1)")).to_be_visible()
    expect(page.get_by_text("New (1)")).to_be_visible()

    page.get_by_role("button", name="README").click()
    expect(page.locator("#changes .added")).to_have_text("+changed <b>\n")
    expect(page.locator("#changes .gone")).to_have_text("-hello\n")
    page.get_by_role("button", name="← All changes").click()
    page.get_by_label("Commit all of it").fill("Change it")
    page.get_by_role("button", name="Commit", exact=True).click()

    expect(page.get_by_text("Everything is committed.")).to_be_visible()
    expect(page.locator("#changes .commits li").first).to_contain_text("Change it")
    assert run_git(place.workspace, "log", "-1", "--format=%an %s") == "ada Change it"
    assert ada.unexpected(*NO_SOCKET) == []


def test_a_file_is_edited_and_one_that_has_changed_meanwhile_is_not_overwritten(
    visit: Any, world: World, session: TaskSession, place: Place
) -> None:
    world.team.permissions.add(Permission.objects.get(codename="operate_unisolated"))
    ada = visit()
    page = ada.open(path_of(session))
    page.locator("#files summary").click()
    page.get_by_role("button", name="README").click()
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Content of README").fill("mine\n")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#files pre")).to_have_text("mine\n")
    assert (place.workspace / "README").read_text() == "mine\n"

    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Content of README").fill("mine again\n")
    (place.workspace / "README").write_text("the agent's\n")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#files").get_by_role("alert")).to_contain_text("has changed since it was read")
    expect(page.get_by_label("Content of README")).to_have_value("mine again\n")
    assert (place.workspace / "README").read_text() == "the agent's\n"
    assert ada.unexpected(*NO_SOCKET, "409 (Conflict)") == []


def test_who_may_not_operate_is_offered_no_editing(visit: Any, session: TaskSession) -> None:
    page = visit().open(path_of(session))
    page.locator("#files summary").click()
    page.get_by_role("button", name="README").click()
    expect(page.locator("#files pre")).to_have_text("hello\n")
    expect(page.get_by_role("button", name="Edit")).to_have_count(0)


def test_where_no_workspace_is_open_what_was_kept_is_shown_and_said(
    visit: Any, world: World, session: TaskSession, place: Place
) -> None:
    world.repository.path = str(place.workspace)
    world.repository.save()
    session.worktree_branch = run_git(place.workspace, "branch", "--show-current")
    session.save(update_fields=["worktree_branch"])
    ExecutorRunning.objects.update(status="stopped")
    page = visit().open(path_of(session))
    page.locator("#files summary").click()
    expect(page.locator("#files")).to_contain_text("The workspace is not open. This is what was kept of it")
    page.get_by_role("button", name="README").click()
    expect(page.locator("#files pre")).to_have_text("hello\n")
    page.locator("#changes summary").click()
    expect(page.locator("#changes")).to_contain_text("The workspace is not open.")
    expect(page.locator("#changes .commits li")).to_have_count(1)
