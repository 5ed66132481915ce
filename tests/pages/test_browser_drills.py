"""Recovery drills watched on an open page, with real processes that are killed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from executors_app.machine.git.recovery_snapshots import session_recovery_ref
from tests.drills.session_steps import wait_for_first_turn
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import SERVER_AWAY, hold_updates, navigating, reported
from tests.pages.people import AGENT, Place, agent_says, lines_of, path_of, pill
from tests.waiting import eventually

pytestmark = pytest.mark.browser

Picture = Callable[[Page, str], None]


@pytest.fixture(scope="module")
def place_of_all(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("place"), browser)
    yield made
    made.deployment.close()


@pytest.fixture
def place(place_of_all: Place) -> Place:
    place_of_all.serve()
    return place_of_all


def reconnecting(page: Page) -> Any:
    return page.get_by_text("Reconnecting…")


def test_drill_a_open_page_loses_and_duplicates_nothing(place: Place, picture: Picture) -> None:
    session = place.start("work 3\nask", "Mend the login tests")
    with place.visiting() as visit:
        page = visit.open(path_of(session))
        expect(agent_says(page)).to_contain_text("tick 3")
        picture(page, "session-running")
        place.kill()
        expect(reconnecting(page)).to_be_visible()
        eventually(
            lambda: "permission.requested" in session.journal(),
            describe="the permission request is in the journal",
        )
        place.serve()

        expect(reconnecting(page)).to_be_hidden()
        expect(pill(page, "Continuity")).to_have_text("Reattached: the same process (verified)")
        page.get_by_role("button", name="Allow").first.click()
        expect(pill(page, "Session")).to_have_text("Your turn")
        page.get_by_text("Restarts and resumes").click()
        expect(page.get_by_role("listitem").filter(has_text="Reattached")).to_be_visible()
        picture(page, "session-after-a-restart")
        expect(page.locator(".message.growing")).to_have_count(0)
        assert lines_of(page) == [line for line in session.agent_log().splitlines() if line.strip()]
        expect(page.locator(".message.user")).to_have_count(1)
        assert visit.unexpected(*SERVER_AWAY) == []


def test_drill_b_interrupted_prompt_is_shown_and_the_agent_remembers(place: Place) -> None:
    session = place.start("remember walrus", "Name the release")
    with place.visiting() as visit:
        page = visit.open(path_of(session))
        expect(pill(page, "Session")).to_have_text("Your turn")
        expect(page.locator("#part-continuity")).to_contain_text("First start")
        page.get_by_label("Your prompt").fill("work 30")
        page.keyboard.press("Control+Enter")
        expect(agent_says(page).last).to_contain_text("tick 3")
        place.kill()
        session.kill_everything()
        place.serve(KANDEV_CONTINUE="off")

        unsettled = page.get_by_role("region", name="Prompts to decide on")
        expect(unsettled).to_contain_text("The agent was interrupted while it worked on this.")
        expect(pill(page, "Continuity")).to_contain_text("Loaded: the agent replayed its conversation")
        unsettled.get_by_role("button", name="Dismiss").click()
        expect(unsettled).to_be_hidden()
        page.get_by_label("Your prompt").fill("what was the word?")
        page.get_by_role("button", name="Send", exact=True).click()
        expect(agent_says(page).last).to_contain_text("walrus")
        expect(page.locator(".message.user")).to_have_count(3)
        assert visit.unexpected(*SERVER_AWAY) == []


def test_drill_c_workspace_stays_open_when_the_agent_cannot_resume(place: Place) -> None:
    session = place.start("write kept.txt hello", "Write the change log", {"supports_session_resume": False})
    with place.visiting() as visit:
        page = visit.open(path_of(session))
        expect(pill(page, "Session")).to_have_text("Your turn")
        page.get_by_role("tab", name="Files").click()
        expect(page.get_by_role("button", name="kept.txt")).to_be_visible()
        place.kill()
        session.kill_everything()
        place.serve()

        banner = page.get_by_text("This agent doesn’t support resuming. Start a new session.")
        expect(banner).to_be_visible()
        expect(pill(page, "Executor")).to_contain_text("Ready")
        page.get_by_role("button", name="kept.txt").click()
        expect(page.locator("#files pre")).to_have_text("hello")
        expect(page.get_by_label("Your prompt")).to_be_disabled()
        expect(page.get_by_role("link", name="Create new session")).to_be_visible()
        assert visit.unexpected(*SERVER_AWAY) == []


def test_drill_d_missing_worktree_is_shown_with_its_reason(place: Place, picture: Picture) -> None:
    session = place.start("remember one", "Move the images")
    with place.visiting() as visit:
        page = visit.open(path_of(session))
        expect(agent_says(page).last).to_contain_text("I will remember one")  # it is also your turn before that
        expect(pill(page, "Session")).to_have_text("Your turn")
        place.kill()
        session.kill_everything()
        lost = session.row
        shutil.rmtree(lost["worktree_path"])
        git = ["git", "-C", str(place.deployment.repository)]
        subprocess.run([*git, "worktree", "prune"], check=True)
        subprocess.run([*git, "branch", "-qD", lost["worktree_branch"]], check=True)
        # Otherwise it could be rebuilt from its newest snapshot.
        shutil.rmtree(place.deployment.data / "archives" / f"{session.id}.git", ignore_errors=True)
        subprocess.run([*git, "update-ref", "-d", session_recovery_ref(session.id)], check=True)
        place.serve()

        banner = page.get_by_role("region", name="What to know")
        expect(banner).to_contain_text("The worktree of this session is gone")
        expect(banner).to_contain_text(lost["worktree_branch"])
        expect(pill(page, "Executor")).to_contain_text("Error")
        assert visit.unexpected(*SERVER_AWAY) == []
        page.goto("/executors/")
        expect(page.get_by_role("main")).to_contain_text(lost["worktree_branch"])
        page.goto("/sweeps/")
        picture(page, "sweeps")
        page.get_by_role("link", name="When a supervisor started").first.click()
        expect(page.get_by_role("table")).to_contain_text("Move the images")


def acknowledged(sent: str | bytes) -> list[int]:
    """Return the seq acknowledged by a frame from the page, in a list; empty for other frames."""
    frame = json.loads(sent)
    return [frame["seq"]] if frame["type"] == "ack" else []


def test_message_grows_through_the_socket_alone(place: Place) -> None:
    session = place.start("work 1")
    with place.visiting() as visit:
        acks: list[int] = []
        visit.page.on(
            "websocket", lambda socket: socket.on("framesent", lambda frame: acks.extend(acknowledged(frame)))
        )
        page = visit.open(path_of(session))
        expect(pill(page, "Session")).to_have_text("Your turn")
        session.prompt("work 5")
        expect(agent_says(page)).to_have_count(2)
        hold_updates(page)
        expect(agent_says(page).last).to_contain_text("tick 30")
        page.unroute("**/live/**")
        expect(agent_says(page).last).to_contain_text("tick 50")
        eventually(lambda: reported(page, acks), describe="the page acknowledges what it has received")
        assert acks == sorted(acks)
        assert visit.complaints == []


def test_two_tabs_start_an_idle_agent_once_and_agree(place: Place) -> None:
    session = place.start("remember walrus", policy="on_open")
    wait_for_first_turn(session)
    session.kill_everything()
    eventually(lambda: session.status()["needs_resume"], describe="the agent's death is noticed")
    with place.visiting() as visit:
        tabs = [visit.page, visit.tab()]
        for tab in tabs:
            tab.goto(path_of(session), wait_until="commit")
        for tab in tabs:
            expect(pill(tab, "Continuity")).to_contain_text("Loaded")
            expect(pill(tab, "Session")).to_have_text("Your turn")
        starts = place.deployment.rows(
            "SELECT * FROM session_intents WHERE session_id = ? AND kind = 'start'", session.id.replace("-", "")
        )
        assert len(starts) == 2, "the first start and one by one of the tabs"
        tabs[0].get_by_label("Your prompt").fill("what was the word?")
        tabs[0].get_by_role("button", name="Send", exact=True).click()
        for tab in tabs:
            expect(agent_says(tab).last).to_contain_text("walrus")
            expect(pill(tab, "Session")).to_have_text("Your turn")
            expect(tab.locator(".message.growing")).to_have_count(0)
        assert lines_of(tabs[0]) == lines_of(tabs[1])
        assert visit.complaints == []


def test_teammate_sees_the_same_session_and_a_stranger_gets_404(place: Place) -> None:
    session = place.start("work 1\nask")
    with place.visiting() as visit, place.visiting("mate") as other, place.visiting("stranger") as stranger:
        mine, theirs = visit.open(path_of(session)), other.open(path_of(session))
        theirs.get_by_role("button", name="Allow").first.click()
        for page in (mine, theirs):
            expect(pill(page, "Session")).to_have_text("Your turn")
            expect(page.locator(".message.growing")).to_have_count(0)
        assert lines_of(mine) == lines_of(theirs) != []
        assert stranger.page.goto(path_of(session)).status == 404  # type: ignore[union-attr]
        expect(stranger.page.get_by_role("heading", name="Page not found")).to_be_visible()
        stranger.page.goto("/executors/")
        expect(stranger.page.get_by_text("No agents of your teams are running")).to_be_visible()
        assert visit.complaints + other.complaints == []


def test_permission_key_is_the_same_after_restart_and_reload(place: Place) -> None:
    session = place.start("ask")
    with place.visiting() as visit:
        page = visit.open(path_of(session))
        key = page.locator("input[name=resume_token]")
        expect(key).to_have_count(1)
        before = key.input_value()
        place.kill()
        place.serve()
        expect(reconnecting(page)).to_be_hidden()
        assert key.input_value() == before
        page.reload()
        assert key.input_value() == before
        page.get_by_role("button", name="Allow").first.click()
        expect(pill(page, "Session")).to_have_text("Your turn")
        assert visit.unexpected(*SERVER_AWAY) == []


def test_second_of_two_answers_is_refused_with_the_first(place: Place) -> None:
    session = place.start("ask\nask")
    with place.visiting() as visit, place.visiting("mate") as other:
        mine, theirs = visit.open(path_of(session)), other.open(path_of(session))
        for page in (mine, theirs):
            expect(page.get_by_role("button", name="Allow").first).to_be_enabled()
        hold_updates(theirs)  # the page keeps showing the open question
        mine.get_by_role("button", name="Allow").first.click()
        expect(mine.locator("input[name=resume_token]")).to_have_count(1)
        theirs.get_by_role("button", name="Reject").first.click()
        expect(theirs.get_by_role("alert")).to_contain_text("has already answered this: Allow once.")
        theirs.unroute("**/live/**")
        assert other.unexpected("409") == []


def test_permission_closes_on_the_page_when_its_agent_dies(place: Place) -> None:
    session = place.start("ask", policy="manual")
    with place.visiting() as visit:
        page = visit.open(path_of(session))
        expect(page.get_by_role("button", name="Allow").first).to_be_visible()
        session.kill_everything()
        closed = page.get_by_text("The agent ended before it got an answer, so this request is closed.")
        expect(closed).to_be_visible()
        expect(page.get_by_role("button", name="Allow")).to_have_count(0)
        assert visit.complaints == []


def test_losing_membership_or_login_closes_the_open_page(place: Place) -> None:
    session = place.start("work 1")
    with place.visiting("leaver") as leaver, place.visiting("guest") as guest:
        pages = [leaver.open(path_of(session)), guest.open(path_of(session))]
        for page in pages:
            expect(pill(page, "Session")).to_have_text("Your turn")
        tab = guest.tab()
        tab.goto("/")
        tab.locator(".account summary").click()
        tab.get_by_role("button", name="Log out").click()
        expect(pages[1].get_by_text("You are logged out.")).to_be_visible()
        place.shell("from django.contrib.auth.models import User; User.objects.get(username='leaver').groups.clear()")
        expect(pages[0].get_by_text("This no longer exists, or you no longer have access to it.")).to_be_visible()
        requests: list[str] = []
        for page in pages:
            page.on("request", lambda request: requests.append(request.url))
            page.on("websocket", lambda socket: requests.append(socket.url))
        session.prompt("work 1")
        eventually(lambda: len(session.prompts()) == 2 and session.row["state"] == "WAITING_FOR_INPUT")
        seen = [url for page in pages for url in reported(page, requests) if not url.endswith("/attention/count/")]
        assert seen == [], "a stopped page requests nothing more"


def press_until(page: Page, key: str, name: str) -> None:
    """Press a key until the focused element is called ``name``."""
    for _ in range(200):  # a focused part that was replaced begins again at the top of the page
        page.keyboard.press(key)
        called = page.evaluate(
            "() => { const e = document.activeElement; return e.labels?.[0]?.innerText ?? e.innerText.trim() }"
        )
        if called == name:
            return
    raise AssertionError(f"{key} does not focus {name}")


def test_conversation_can_be_held_by_keyboard_alone(place: Place) -> None:
    session = place.start("remember walrus")
    with place.visiting() as visit:
        page = visit.open(f"/tasks/{session.task_id}/")
        press_until(page, "Tab", AGENT)
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{path_of(session)}")
        expect(pill(page, "Session")).to_have_text("Your turn")
        press_until(page, "Tab", "Your prompt")
        page.keyboard.type("ask")
        press_until(page, "Tab", "Send")
        page.keyboard.press("Enter")
        question = page.get_by_role("region", name="Permissions").locator("form")
        expect(question).to_be_visible()
        # A question that appears on an open page cannot be answered for a moment.
        expect(question).not_to_have_attribute("inert", "")
        press_until(page, "Shift+Tab", "Allow once")
        page.keyboard.press("Enter")
        expect(page.get_by_role("region", name="Permissions")).to_be_hidden()
        expect(pill(page, "Session")).to_have_text("Your turn")
        press_until(page, "Tab", "Your prompt")
        page.keyboard.type("what was the word?")
        page.keyboard.press("Control+Enter")
        expect(agent_says(page).last).to_contain_text("walrus")
        assert visit.complaints == []


def test_conversation_works_on_a_phone_in_dark_mode(place: Place, picture: Picture) -> None:
    session = place.start("tool\nwrite notes.md hello\nask", "Sort the notes")
    screen: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
    with place.visiting(**screen, has_touch=True, is_mobile=True) as visit:
        page = visit.open(path_of(session))
        expect(page.get_by_role("region", name="Permissions")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert accessibility_problems(page) == []
        picture(page, "telephone-dark")
        page.get_by_role("button", name="Allow").first.tap()
        expect(pill(page, "Session")).to_have_text("Your turn")
        page.goto("/")
        expect(page.get_by_role("heading", name="Board")).to_be_visible()
        assert visit.complaints == []


def test_staff_can_start_a_sweep_and_see_its_result(place: Place) -> None:
    place.start("work 1", "Count the ticks")
    with place.visiting() as visit:
        page = visit.open("/")
        expect(page.get_by_role("link", name=AGENT).first).to_be_visible()
        with navigating(page):
            page.get_by_role("link", name="Sweeps").click()
        page.get_by_role("button", name="Sweep now").click()
        expect(page.get_by_role("rowheader", name="Count the ticks")).to_be_visible()
        page.get_by_role("link", name="Show the sweep").click()
        expect(page.get_by_role("heading", name="Sweep: Regular check")).to_be_visible()
        assert visit.complaints == []
