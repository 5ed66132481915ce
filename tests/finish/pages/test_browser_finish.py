"""The pages of merges and pushes in a real browser: on a telephone in the dark, and without JavaScript."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from sessions_app.finish.execution import carry_out, open_intents
from sessions_app.models import RepositoryRemote
from tests.finish.intents import give_right
from tests.finish.repositories import Mergeable, mergeable
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET, Visit, navigating
from tests.repositories.remote_servers import TOKEN, USERNAME, GitHttpServer, add_hook, hosted_refs, make_hosted
from tests.supervisor.rows import make_user

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
TELEPHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
WITHOUT_JAVASCRIPT = {"java_script_enabled": False}


@pytest.fixture
def hosted(tmp_path: Path) -> Path:
    (tmp_path / "served").mkdir()
    made = make_hosted(tmp_path / "served" / "project.git")
    add_hook(made, "post-receive", "echo 'See https://example.org/new'")
    return made


@pytest.fixture
def made(tmp_path: Path, hosted: Path, settings: Any) -> Iterator[Mergeable]:
    """Yield a session whose branch can be merged, and its base pushed."""
    settings.KANDEV_DATA_DIR = str(tmp_path / "data")
    found = mergeable(tmp_path / "repository")
    give_right(found.session, "push_branches")
    repository = found.session.task.repository
    assert repository is not None
    server = GitHttpServer(hosted.parent)
    address = server.address(hosted.name).text
    RepositoryRemote.objects.create(repository=repository, address=address, username=USERNAME, token=TOKEN)
    yield found
    server.close()


@pytest.mark.parametrize("screen", [TELEPHONE, WITHOUT_JAVASCRIPT], ids=["telephone in the dark", "without JavaScript"])
def test_branch_is_merged_and_its_base_is_pushed(
    visit_as: Callable[..., Visit], made: Mergeable, hosted: Path, screen: dict[str, Any]
) -> None:
    ada = visit_as(make_user(), **screen)
    has_javascript = screen.get("java_script_enabled", True)

    def check_page() -> None:
        if has_javascript:
            assert accessibility_problems(page) == []
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

    def carry_out_what_is_requested(shown: str, waiting: str, end: str) -> None:
        expect(page.locator(f"#part-{shown} .pill").first).to_have_text(waiting)
        for intent in open_intents():
            assert carry_out(intent)
        if not has_javascript:
            page.reload()
        expect(page.locator(f"#part-{shown} .pill").first).to_have_text(end)
        check_page()

    page = ada.open(f"/tasks/{made.session.task_id}/sessions/{made.session.id}/finish/")
    with navigating(page):
        page.get_by_role("link", name="Squash").click()
    page.get_by_label("Message of the commit").fill("Two things")
    check_page()
    with navigating(page):
        page.get_by_role("button", name="Squash").click()
    carry_out_what_is_requested("intents", "Waiting for the supervisor", "Done")
    assert made.subjects()[0] == "Two things"

    with navigating(page):
        page.get_by_role("link", name="Push…").click()
    with navigating(page):
        page.get_by_role("link", name="The base, after a merge").click()
    expect(page.get_by_text("starts whatever the server runs")).to_be_visible()
    check_page()
    with navigating(page):
        page.get_by_role("button", name=f"Push {made.at()[:12]} to main").click()
    carry_out_what_is_requested("pushes", "Requested", "Pushed")
    expect(page.get_by_role("link", name="https://example.org/new")).to_be_visible()
    assert hosted_refs(hosted) == {"refs/heads/main": made.at()}
    assert ada.unexpected(*NO_SOCKET) == []
