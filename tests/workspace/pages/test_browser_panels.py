"""The workspace panels in a real browser with a real agentctl."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from playwright.sync_api import Page, expect

from executors_app.models import ExecutorRunning
from sessions_app.models import TaskSession
from tests.agentctl.running import TOKEN
from tests.executors.repositories import commit, make_repository, run_git
from tests.pages.browsers import NO_SOCKET
from tests.pages.world import World, path_of
from tests.workspace.served import REAL, Place, make_repository_in
from tests.workspace.trees import add_submodule

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Yield a workspace that a real agentctl serves."""
    made = Place(tmp_path)
    make_repository_in(made.workspace)
    with made.agentctl(REAL):
        yield made


@pytest.fixture
def session(world: World, place: Place) -> TaskSession:
    """Return a session served by that agentctl."""
    made = world.running_session()
    execution = ExecutorRunning.objects.get(session=made)
    execution.agentctl_url, execution.auth_token, execution.state = place.ready()["url"], TOKEN, place.state()
    execution.save()
    return made


def tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def test_changes_can_be_viewed_and_committed(visit: Any, session: TaskSession, place: Place) -> None:
    (place.workspace / "README").write_text("changed <b>\n")
    (place.workspace / "new").write_text("x\n")
    (place.workspace / "left").write_text("not yet\n")
    ada = visit()
    page = ada.open(path_of(session))
    tab(page, "Changes")
    expect(page.get_by_text("Not staged (1)")).to_be_visible()
    expect(page.get_by_text("New (2)")).to_be_visible()

    changes = page.locator("#changes")
    changes.get_by_role("button", name="README", exact=True).click()
    expect(changes.locator(".added")).to_have_text("+changed <b>\n")
    expect(changes.locator(".gone")).to_have_text("-hello\n")
    page.get_by_role("button", name="← All changes").click()
    changes.get_by_role("button", name="new", exact=True).click()
    expect(changes.locator(".added")).to_have_text("+x\n")
    page.get_by_role("button", name="← All changes").click()
    page.get_by_label("Commit left").uncheck()
    page.get_by_label("Commit selected files").fill("Change it")
    page.get_by_role("button", name="Commit", exact=True).click()

    expect(changes.get_by_role("status")).to_contain_text("Change it")
    expect(page.get_by_text("New (1)")).to_be_visible()
    expect(changes.locator(".commits li").first).to_contain_text("Change it")
    assert run_git(place.workspace, "log", "-1", "--format=%an %s") == "ada Change it"
    assert run_git(place.workspace, "status", "--porcelain") == "?? left"

    page.get_by_label("Commit left").uncheck()
    page.get_by_label("Commit selected files").fill("Nothing")
    page.get_by_role("button", name="Commit", exact=True).click()
    expect(changes.get_by_role("alert")).to_have_text("Select at least one file.")
    assert ada.unexpected(*NO_SOCKET) == []


def test_changes_inside_a_submodule_are_shown_with_what_to_do(
    visit: Any, session: TaskSession, place: Place, tmp_path: Path
) -> None:
    add_submodule(place.workspace, make_repository(tmp_path / "library", "f.txt", "lib\n"))
    (place.workspace / "sub" / "f.txt").write_text("changed\n")
    ada = visit()
    page = ada.open(path_of(session))
    tab(page, "Changes")
    changes = page.locator("#changes")
    expect(changes.get_by_role("heading", name="Inside the submodule sub (1)")).to_be_visible()
    expect(changes.get_by_text("Commit these files inside the submodule first")).to_be_visible()
    expect(page.get_by_label("Commit selected files")).to_have_count(0)
    changes.get_by_role("button", name="sub/f.txt").click()
    expect(changes.locator(".added")).to_have_text("+changed\n")
    assert ada.unexpected(*NO_SOCKET) == []


def test_merge_conflicts_are_shown_and_cannot_be_committed(visit: Any, session: TaskSession, place: Place) -> None:
    start = run_git(place.workspace, "rev-parse", "HEAD")
    commit(place.workspace, "README", "ours\n")
    run_git(place.workspace, "checkout", "-q", "-b", "other", start)
    commit(place.workspace, "README", "theirs\n")
    with pytest.raises(subprocess.CalledProcessError):
        run_git(place.workspace, "merge", "-q", "-")
    page = visit().open(path_of(session))
    tab(page, "Changes")
    expect(page.get_by_text("In conflict (1)")).to_be_visible()
    expect(page.locator("#changes").get_by_role("alert")).to_contain_text("A merge has conflicts.")
    expect(page.get_by_label("Commit selected files")).to_have_count(0)


def test_files_can_be_edited_without_overwriting_newer_changes(
    visit: Any, world: World, session: TaskSession, place: Place
) -> None:
    world.team.permissions.add(Permission.objects.get(codename="operate_unisolated"))
    (place.workspace / "src" / "deep").mkdir(parents=True)
    (place.workspace / "src" / "deep" / "code.py").write_text("def f():\n    return '<b>\u202e'\n")
    (place.workspace / "data.bin").write_bytes(bytes(range(256)))
    (place.workspace / "huge.txt").write_text("line\n" * 300_000)
    ada = visit()
    page = ada.open(path_of(session))
    tab(page, "Files")
    files = page.locator("#files")
    for folder in ("src/", "deep/"):
        files.get_by_role("button", name=folder).click()
    files.get_by_role("button", name="code.py").click()
    expect(files.locator("pre .k").first).to_have_text("def")
    expect(files.locator("pre")).to_contain_text("<b>⟦RLO⟧")
    files.get_by_role("button", name="data.bin").click()
    expect(files).to_contain_text("This is a binary file (256 bytes)")
    files.get_by_role("button", name="huge.txt").click()
    expect(files).to_contain_text("Only the beginning is shown")
    expect(page.get_by_role("button", name="Edit")).to_have_count(0)

    files.get_by_role("button", name="README").click()
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Content of README").fill("mine\n")
    page.get_by_role("button", name="Save").click()
    expect(files.locator("pre")).to_have_text("mine\n")
    assert (place.workspace / "README").read_text() == "mine\n"

    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Content of README").fill("mine again\n")
    (place.workspace / "README").write_text("the agent's\n")
    page.get_by_role("button", name="Save").click()
    expect(files.get_by_role("alert")).to_contain_text("has changed since it was read")
    expect(page.get_by_label("Content of README")).to_have_value("mine again\n")
    assert (place.workspace / "README").read_text() == "the agent's\n"
    files.get_by_text("Show the differences").click()
    expect(files.locator(".gone")).to_have_text("-the agent's\n")
    expect(files.locator(".added")).to_have_text("+mine again\n")
    page.get_by_role("button", name="Overwrite it with mine").click()
    expect(files.locator("pre")).to_have_text("mine again\n")
    assert (place.workspace / "README").read_text() == "mine again\n"

    page.get_by_role("button", name="New file").click()
    page.get_by_label("Path of the new file").fill("src/made.txt")
    page.get_by_role("button", name="Create").click()
    page.get_by_label("Content of src/made.txt").fill("new\n")
    page.get_by_role("button", name="Save").click()
    expect(files.get_by_role("status")).to_have_text("File created.")
    expect(files.get_by_role("button", name="made.txt")).to_be_visible()
    assert (place.workspace / "src" / "made.txt").read_text() == "new\n"
    assert ada.unexpected(*NO_SOCKET, "409 (Conflict)") == []


def test_user_without_the_right_gets_no_editor_or_terminal(visit: Any, session: TaskSession) -> None:
    page = visit().open(path_of(session))
    tab(page, "Files")
    page.get_by_role("button", name="README").click()
    expect(page.locator("#files pre")).to_have_text("hello\n")
    for name in ("Edit", "New file"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect(page.get_by_role("tab", name="Terminal")).to_have_count(0)


def test_closed_workspace_shows_its_saved_state(visit: Any, world: World, session: TaskSession, place: Place) -> None:
    world.repository.path = str(place.workspace)
    world.repository.save()
    world.team.permissions.add(Permission.objects.get(codename="operate_unisolated"))
    session.worktree_branch = run_git(place.workspace, "branch", "--show-current")
    session.save(update_fields=["worktree_branch"])
    ExecutorRunning.objects.update(status="stopped")
    page = visit().open(path_of(session))
    tab(page, "Files")
    expect(page.locator("#files")).to_contain_text("The workspace is not open. This is its last saved state")
    page.get_by_role("button", name="README").click()
    expect(page.locator("#files pre")).to_have_text("hello\n")
    expect(page.get_by_role("button", name="Edit")).to_have_count(0)
    tab(page, "Changes")
    expect(page.locator("#changes")).to_contain_text("The workspace is not open.")
    expect(page.locator("#changes .commits li")).to_have_count(1)
    tab(page, "Terminal")
    expect(page.locator("#terminal")).to_contain_text("The workspace is not open, so there is no terminal.")
