"""The whole branch in the Changes panel, in a real browser with a real agentctl."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from sessions_app.models import Task, TaskSession
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET
from tests.pages.world import path_of
from tests.workspace.served import Place

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def open_changes(page: Page) -> Any:
    page.get_by_role("tab", name="Changes").click()
    return page.locator(".review")


def test_whole_branch_is_shown_against_its_base(visit: Any, session: TaskSession, place: Place) -> None:
    ada = visit()
    review = open_changes(ada.open(path_of(session)))
    expect(review).to_contain_text("4 files changed since main +1 −1")
    expect(review).to_contain_text("The branch is 2 commits ahead of main.")
    articles = review.locator("article")
    expect(articles).to_have_count(4)
    code, renamed, picture, script = (articles.nth(number) for number in range(4))
    expect(code.locator(".line.plus")).to_have_text("+changed <b>⟦RLO⟧")
    expect(code.locator(".line.minus")).to_have_text("-line 50")
    expect(code.locator(".line.minus")).to_have_attribute("data-numbers", "   51      ")
    expect(code.locator("[data-path='code.py'][data-side=old][data-line='51']")).to_have_text("-line 50")
    expect(code.locator("[data-path='code.py'][data-side=new][data-line='50']")).to_have_text("line 49")
    expect(renamed).to_contain_text("new name ← old name")
    expect(renamed).to_contain_text("Its content is the same.")
    expect(picture).to_contain_text("added, not committed")
    expect(picture).to_contain_text("A binary file of 2 bytes: it has no lines to show.")
    expect(script).to_contain_text("mode only, not committed")
    expect(script).to_contain_text("It can be executed now.")

    code.get_by_role("button", name="Show more lines").click()
    expect(code.locator(".lines")).to_contain_text("line 30")
    code.get_by_role("button", name="Show the whole file").click()
    expect(code.locator(".lines")).to_contain_text("line 99")
    expect(code.get_by_role("button")).to_have_count(0)
    assert ada.unexpected(*NO_SOCKET) == []


def test_review_is_accessible_on_a_phone_and_in_the_dark(visit: Any, session: TaskSession) -> None:
    for screen in ({}, {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}):
        page = visit(**screen).open(path_of(session))
        review = open_changes(page)
        expect(review.locator(".line.minus")).to_have_text("-line 50")
        assert accessibility_problems(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.goto(f"{path_of(session)}changes/")
        expect(page.locator(".line.minus")).to_have_text("-line 50")
        assert accessibility_problems(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_viewed_file_is_folded_until_it_changes_again(visit: Any, session: TaskSession, place: Place) -> None:
    ada = visit()
    page = ada.open(path_of(session))
    review = open_changes(page)
    code = review.locator("article").first
    expect(code.locator(".lines")).to_be_visible()
    code.get_by_label("Viewed code.py").check()
    expect(code.locator(".lines")).to_be_hidden()
    expect(review.locator(".reviewed li").first).to_contain_text("viewed")
    kept = page.evaluate("Object.keys(localStorage).filter(key => key.startsWith('kandev-viewed'))")
    assert [key.split(":")[1].isdigit() and key.count(":") for key in kept] == [1], "one for all sessions of a user"

    page.reload()
    expect(code.get_by_label("Viewed code.py")).to_be_checked()
    expect(code.locator(".lines")).to_be_hidden()
    (place.workspace / "code.py").write_text("other\n")
    page.get_by_role("button", name="Refresh").click()
    expect(code.get_by_label("Viewed code.py")).not_to_be_checked()
    expect(code.locator(".line.plus")).to_have_text("+other")
    assert ada.unexpected(*NO_SOCKET) == []


def test_keys_move_between_files(visit: Any, session: TaskSession) -> None:
    page = visit().open(path_of(session))
    review = open_changes(page)
    titles = review.locator("h4")
    expect(titles).to_have_count(4)
    for key, number in (("j", 0), ("j", 1), ("j", 2), ("k", 1), ("j", 2), ("j", 3), ("j", 3)):
        page.keyboard.press(key)
        expect(titles.nth(number)).to_be_focused()
    page.get_by_label("Commit selected files").fill("jk")
    expect(page.get_by_label("Commit selected files")).to_have_value("jk")


def test_commit_keeps_what_is_shown_and_a_branch_without_a_base_says_so(
    visit: Any, session: TaskSession, place: Place
) -> None:
    ada = visit()
    page = ada.open(path_of(session))
    review = open_changes(page)
    expect(review).to_contain_text("added, not committed")
    page.get_by_label("Commit selected files").fill("All of it")
    page.get_by_role("button", name="Commit", exact=True).click()
    expect(page.locator("#changes").get_by_role("status")).to_contain_text("All of it")
    expect(review).to_contain_text("4 files changed since main")
    expect(review).not_to_contain_text("not committed")
    expect(page.locator("#changes")).to_contain_text("No uncommitted changes.")

    Task.objects.update(base_branch="gone")
    page.get_by_role("button", name="Refresh").click()
    expect(review).to_contain_text("The base gone was not found in this workspace")
    expect(review).to_contain_text("0 files not committed")
    assert ada.unexpected(*NO_SOCKET) == []
