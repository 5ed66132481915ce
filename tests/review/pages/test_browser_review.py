"""The whole branch in the Changes panel, in a real browser with a real agentctl."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from executors_app.agentctl.workspace.snapshots import take_snapshot
from sessions_app.models import Prompt, ReviewComment, Task, TaskSession, Turn, ViewedVersion
from tests.executors.repositories import run_git
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET
from tests.pages.world import path_of
from tests.review.pages.conftest import LINES
from tests.waiting import eventually
from tests.workspace.served import Place
from tests.workspace.trees import git_of

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
    expect(code.get_by_role("button", name="Show")).to_have_count(0)
    assert ada.unexpected(*NO_SOCKET) == []


def test_lines_are_coloured_and_shown_side_by_side_where_there_is_room(
    visit: Any, session: TaskSession, place: Place
) -> None:
    (place.workspace / "code.py").write_text(LINES.replace("line 50\n", "line 50 = 'x'\n"))
    ada = visit(viewport={"width": 1800, "height": 1000})
    page = ada.open(path_of(session))
    code = open_changes(page).locator("article").first
    expect(code.locator(".line.plus .hljs-string.word")).to_have_text("'x'")
    page.get_by_role("button", name="Side by side").click()
    beside = code.locator(".pair:has(.minus) > .line")
    expect(beside).to_have_text(["-line 50", "+line 50 = 'x'"])
    expect(code.locator("[data-side=old][data-line='50']")).to_have_text("line 49")
    page.reload()
    expect(beside).to_have_count(2)
    page.set_viewport_size({"width": 390, "height": 844})
    expect(code.locator(".pair")).to_have_count(0)
    expect(page.get_by_role("button", name="Side by side")).to_be_hidden()
    page.set_viewport_size({"width": 1800, "height": 1000})
    expect(beside).to_have_count(2)
    page.get_by_role("button", name="Unified").click()
    expect(code.locator(".pair")).to_have_count(0)
    page.get_by_role("button", name="Side by side").click()
    expect(code.locator(".line.plus .hljs-string.word")).to_have_text("'x'")
    assert ada.unexpected(*NO_SOCKET) == []
    assert accessibility_problems(page) == []


def test_parts_are_chosen_above_the_files_and_from_the_end_of_a_turn(
    visit: Any, session: TaskSession, place: Place
) -> None:
    git, copy = git_of(place.workspace), place.base / "copy"
    before = take_snapshot(git, "session-1", copy, "turn_start").commit
    (place.workspace / "src" / "deep").mkdir(parents=True)
    (place.workspace / "src" / "deep" / "made.py").write_text("by_the_turn = 1\n")
    after = take_snapshot(git, "session-1", copy, "turn_end").commit
    git.close()
    at = timezone.now() - timedelta(hours=1)
    known = {"snapshot_before": before, "snapshot_after": after, "first_seq": 0, "last_seq": 10**6}
    Turn.objects.create(session=session, message_id="m", state="completed", started_at=at, ended_at=at, **known)
    ada = visit()
    page = ada.open(path_of(session))
    page.get_by_role("link", name="What this turn changed").click()
    review = page.locator(".review")
    expect(review).to_contain_text("1 file changed in this turn +1 −0")
    expect(review.locator("article h4")).to_have_text("src/deep/made.py")
    folder = review.locator(".reviewed details")
    expect(folder.locator("summary")).to_contain_text("src/deep/1 file")
    folder.locator("summary").click()
    expect(folder.get_by_role("link", name="made.py")).to_be_hidden()

    chosen = review.get_by_role("combobox")
    chosen.select_option("Uncommitted changes")
    expect(review).to_contain_text("3 files not committed")
    page.get_by_role("link", name="Rename", exact=True).click()
    expect(review).to_contain_text("1 file changed in commit")
    expect(review.locator("article h4")).to_have_text("new name ← old name")
    review.get_by_role("combobox").select_option("The whole branch")
    expect(review).to_contain_text("5 files changed since main")
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
    eventually(lambda: ViewedVersion.objects.filter(session=session).count() == 1)

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
    changes, message = page.locator("#changes"), page.get_by_label("Commit selected files")
    page.get_by_role("button", name="Commit…", exact=True).click()
    expect(message).to_be_focused()
    expect(changes).to_contain_text("2 of 2 selected.")
    page.get_by_role("button", name="Select none").click()
    changes.get_by_label("Commit script").check()
    expect(changes).to_contain_text("1 of 2 selected.")
    message.fill("Part of it")
    (place.workspace / "script").write_text("written meanwhile\n")
    page.get_by_role("button", name="Commit", exact=True).click()
    expect(changes.get_by_role("alert")).to_contain_text("script (changed)")
    assert accessibility_problems(page) == []
    page.get_by_role("button", name="Look again").click()
    expect(changes.get_by_role("alert")).to_have_count(0)
    expect(message).to_have_value("Part of it")
    expect(changes.get_by_label("Commit script")).to_be_checked()
    changes.get_by_label("Commit picture").uncheck()
    page.get_by_role("button", name="Commit", exact=True).click()
    expect(changes.get_by_role("status")).to_contain_text("Part of it")
    expect(changes.get_by_label("Commit script")).to_have_count(0)
    run_git(place.workspace, "add", "picture")
    (place.workspace / "picture").write_text("more\n")
    page.get_by_role("button", name="Refresh").click()
    twins = changes.get_by_label("Commit picture")
    expect(twins).to_have_count(2)
    twins.first.uncheck()
    expect(twins.last).not_to_be_checked()
    twins.last.check()
    expect(twins.first).to_be_checked()
    expect(message).to_have_value("")
    message.fill("All of it")
    page.get_by_role("button", name="Commit", exact=True).click()
    expect(changes.get_by_role("status")).to_contain_text("All of it")
    expect(review).to_contain_text("4 files changed since main")
    expect(review).not_to_contain_text("not committed")
    expect(page.locator("#changes")).to_contain_text("No uncommitted changes.")

    Task.objects.update(base_branch="gone")
    page.get_by_role("button", name="Refresh").click()
    expect(review).to_contain_text("The base gone was not found in this workspace")
    expect(review).to_contain_text("0 files not committed")
    assert ada.unexpected(*NO_SOCKET, "409 (Conflict)") == []


def test_nothing_is_committed_by_its_name_alone_when_the_versions_cannot_be_read(
    visit: Any, session: TaskSession, place: Place
) -> None:
    ada = visit()
    page = ada.open(path_of(session))
    page.route("**/review/commit/", lambda route: route.fulfill(status=503, json={"code": "x", "message": "Not now."}))
    open_changes(page)
    changes, message = page.locator("#changes"), page.get_by_label("Commit selected files")
    expect(changes.get_by_role("alert")).to_contain_text("Not now.")
    expect(changes.get_by_label("Commit script")).to_be_disabled()
    message.fill("All of it")
    page.get_by_role("button", name="Commit", exact=True).click()
    expect(changes.get_by_role("alert")).to_contain_text("Select at least one file.")
    assert "script" in run_git(place.workspace, "status", "--porcelain")
    page.unroute("**/review/commit/")
    page.get_by_role("button", name="Refresh").click()
    expect(changes.get_by_label("Commit script")).to_be_checked()
    expect(message).to_have_value("All of it")
    assert ada.unexpected(*NO_SOCKET, "503") == []


def test_commit_is_reported_although_the_changes_cannot_be_loaded_after_it(
    visit: Any, session: TaskSession, place: Place
) -> None:
    ada = visit()
    page = ada.open(path_of(session))
    open_changes(page)
    changes = page.locator("#changes")
    page.get_by_label("Commit selected files").fill("All of it")
    expect(changes.get_by_label("Commit script")).to_be_checked()
    page.route("**/git/log/**", lambda route: route.fulfill(status=503, json={"code": "x", "message": "Not now."}))
    page.get_by_role("button", name="Commit", exact=True).click()
    expect(changes.get_by_role("alert")).to_contain_text("Not now.")
    expect(changes.get_by_role("status")).to_contain_text("All of it")
    assert run_git(place.workspace, "status", "--porcelain") == ""
    assert ada.unexpected(*NO_SOCKET, "503") == []


def test_comments_are_written_at_lines_changed_and_sent_as_one_prompt(
    visit: Any, session: TaskSession, place: Place
) -> None:
    ada = visit()
    page = ada.open(path_of(session))
    review = open_changes(page)
    code = review.locator("article").first
    code.get_by_role("button", name="Comment on a line of code.py").press("Enter")
    form = code.locator("form")
    expect(form.get_by_label("Comment", exact=True)).to_be_focused()
    expect(form.get_by_label("Line before the change")).to_have_value("51")
    form.get_by_label("Comment", exact=True).fill("This was right.")
    page.keyboard.press("Control+Enter")
    comments = page.locator("#comments")
    expect(comments.locator(".remark")).to_contain_text(["code.py, line 51 before the change ada"])
    expect(code.locator(".lines .remark")).to_contain_text("This was right.")

    code.locator("[data-side=new][data-line='49']").click(position={"x": 5, "y": 5})
    expect(form.get_by_label("Line", exact=True)).to_have_value("49")
    code.locator("[data-side=new][data-line='51']").click(position={"x": 5, "y": 5}, modifiers=["Shift"])
    expect(form.get_by_label("to line")).to_have_value("51")
    form.get_by_label("Comment", exact=True).fill("Why <b>\u202e?")
    form.get_by_role("button", name="Add comment").click()
    expect(comments).to_contain_text("Comments to send (2)")
    expect(comments.locator(".remark").nth(1)).to_contain_text("Why <b>⟦RLO⟧?")
    assert ReviewComment.objects.get(first_line=49).excerpt == "line 48\nline 49\nchanged <b>⟦RLO⟧"

    comments.get_by_role("button", name="Edit the comment on code.py, lines 49 to 51").click()
    comments.get_by_role("textbox").fill("Why not?")
    comments.get_by_role("button", name="Save").click()
    expect(comments).to_contain_text("Why not?")
    comments.get_by_role("button", name="Delete the comment on code.py, line 51 before the change").click()
    expect(comments).to_contain_text("Comments to send (1)")
    (place.workspace / "code.py").write_text("other\n")
    page.get_by_role("button", name="Refresh").click()
    expect(comments).to_contain_text("Outdated: these lines have changed since.")
    comments.get_by_role("button", name="Send 1 comment").click()
    expect(comments.get_by_role("status")).to_have_text("1 comment sent as one prompt.")
    comments.get_by_text("Sent comments (1)").click()
    expect(comments).to_contain_text("Its prompt is in the queue.")
    assert Prompt.objects.filter(session=session).latest("id").text.endswith("Why not?")
    assert ada.unexpected(*NO_SOCKET) == []
    code.get_by_role("button", name="Comment on a line of code.py").click()
    expect(form.get_by_label("Comment", exact=True)).to_be_focused()
    assert accessibility_problems(page) == []


def test_only_what_was_shown_is_discarded(visit: Any, session: TaskSession, place: Place) -> None:
    ada = visit()
    page = ada.open(path_of(session))
    open_changes(page)
    changes = page.locator("#changes")
    changes.get_by_role("button", name="Discard picture").click()
    expect(changes).to_contain_text("This new file is deleted.")
    changes.get_by_role("button", name="Discard these changes").click()
    expect(changes.get_by_role("status")).to_have_text("Discarded the changes of picture.")
    assert not (place.workspace / "picture").exists()

    (place.workspace / "code.py").write_text("seen\n")
    page.get_by_role("button", name="Refresh").click()
    changes.get_by_role("button", name="Discard code.py").click()
    expect(changes.get_by_role("button", name="Discard these changes")).to_be_visible()
    expect(changes.locator(".diff")).to_contain_text("+seen")
    (place.workspace / "code.py").write_text("written meanwhile\n")
    changes.get_by_role("button", name="Discard these changes").click()
    expect(changes.get_by_role("alert")).to_contain_text("The file has changed since it was shown")
    assert (place.workspace / "code.py").read_text() == "written meanwhile\n"
    changes.get_by_role("button", name="Look again").click()
    expect(changes.get_by_role("alert")).to_have_count(0)
    expect(changes.locator(".diff")).to_contain_text("+written meanwhile")
    assert ada.unexpected(*NO_SOCKET, "409 (Conflict)") == []
    assert accessibility_problems(page) == []
