"""Every page in both themes, on a desktop and on a phone: accessible, not too wide, still, and without errors.

The pages come from the authorization matrix, so new ones are included automatically.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from django.urls import reverse
from playwright.sync_api import Browser, Page, expect

from sessions_app.accounts import credentials
from sessions_app.accounts.models import LoginLink
from sessions_app.models import SweepRequest
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET, Visit
from tests.pages.layout import observe_shifts, shifts_of
from tests.pages.routes import PAGE_ROUTES
from tests.pages.test_browser import busy_session
from tests.pages.world import World, make_sweep, make_world, supervise
from tests.rights.matrix import PAGES
from tests.workflows.pages.workflow_rows import looped_run

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

ADMIN: Final = (
    "/admin/",
    "/admin/sessions_app/",
    "/admin/sessions_app/tasksession/",
    "/admin/executors_app/executor/add/",
)
PHONE: Final = 360


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


@pytest.fixture
def url_values(world: World) -> Mapping[str, Any]:
    """Return values for the variables in URLs, with objects of every kind."""
    session = busy_session(world)
    sweep = make_sweep(session, reattached=3, loaded=1, failed=1)
    world.ada.is_staff, world.ada.first_name = True, "Ada Lovelace"
    world.ada.save()
    credentials.create_token(world.ada, "Nightly build", "write", 90)
    request = SweepRequest.objects.create(by=world.ada, sweep=sweep, report={"sessions": []})
    run = looped_run(world, session)
    return {
        "task_id": session.task_id,
        "session_id": session.id,
        "entry_id": session.messages.filter(role="agent").values_list("id", flat=True)[0],
        "sweep_id": sweep.id,
        "request_id": request.id,
        "team_id": world.team.pk,
        "repository_id": world.repository.pk,
        "workflow_id": run.workflow_id,
        "run_id": run.id,
        "user_id": world.ada.pk,
        "name": "codex",
        "profile_id": world.profile.pk,
        "executor_id": world.executor.pk,
        "runtime": "remote_docker",
    }


def paths(url_values: Mapping[str, Any]) -> Iterator[str]:
    for route in PAGE_ROUTES:
        query = PAGES[route]["get"].query
        path = "/" + re.sub(r"<\w+:(\w+)>", lambda found: str(url_values[found[1]]), route)
        yield f"{path}?{query}" if query else path


def problems_of(page: Page, path: str, width: int) -> list[str]:
    """Open a page; return its problems."""
    answer = page.goto(path)
    assert answer is not None
    wrong = [] if answer.status == 200 else [f"{path}: {answer.status}"]
    wrong += [f"{path}: {moved} while it loads" for moved in shifts_of(page)]
    if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
        wrong.append(f"{path}: {wide} pixels wide")
    return [*wrong, *accessibility_problems(page, path)]


def is_dark(page: Page) -> bool:
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in re.findall(r"\d+", back)[:3]) < 200


SCREENS: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "a light desktop": ("light", {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"}),
    "a dark phone": ("dark", {"viewport": {"width": PHONE, "height": 740}, "color_scheme": "light"}),
}
"""The theme is the chosen one, whatever the system prefers."""


@pytest.mark.parametrize("screen", SCREENS)
def test_pages_are_accessible_and_report_no_errors(screen: str, visit: Any, url_values: Mapping[str, Any]) -> None:
    theme, options = SCREENS[screen]
    ada: Visit = visit(**options)
    observe_shifts(ada.page)
    page = ada.open("/settings/profile/")
    page.locator(".account summary").click()
    with page.expect_response("**/settings/theme/"):  # the next page would not have it otherwise
        page.get_by_role("button", name=theme.capitalize(), exact=True).click()
    expect(page.locator("html")).to_have_attribute("data-theme", theme)
    wrong = accessibility_problems(page, "the open menu")
    width = options["viewport"]["width"]
    for path in paths(url_values):
        wrong += problems_of(page, path, width)
        wrong += [] if is_dark(page) is (theme == "dark") else [f"{path}: the wrong theme"]
    assert wrong == []
    assert ada.unexpected(*NO_SOCKET) == []


def test_login_pages_are_accessible_in_both_themes(visit: Any, world: World) -> None:
    link = reverse("login-link", args=(LoginLink.mint(world.ada),))
    wrong = []
    for scheme in ("light", "dark"):
        nobody: Visit = visit(viewport={"width": PHONE, "height": 740}, color_scheme=scheme)
        nobody.context.clear_cookies()
        for path in ("/login/", link):
            wrong += problems_of(nobody.page, path, PHONE)
            assert is_dark(nobody.page) is (scheme == "dark")
        nobody.page.goto("/login/used/")
        wrong += accessibility_problems(nobody.page, "used link")
        assert nobody.unexpected("410") == []
    assert wrong == []


def test_admin_is_accessible_and_reports_no_errors(visit: Any, url_values: Mapping[str, Any]) -> None:
    ada: Visit = visit(viewport={"width": 1280, "height": 800})
    wrong = []
    for path in ADMIN:
        ada.open(path)
        assert ada.complaints == []
        wrong += accessibility_problems(ada.page, path)
        ada.complaints.clear()  # axe tries styles that the content security policy blocks
    assert wrong == []


def test_menus_and_dialogs_work_by_keyboard(visit: Any, world: World) -> None:
    ada: Visit = visit(viewport={"width": 1280, "height": 800})
    page = ada.open("/design/")
    summary = page.locator(".account summary")
    summary.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Settings")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="Settings")).to_be_hidden()
    expect(summary).to_be_focused()
    opener = page.get_by_role("button", name="Open the dialog")
    opener.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert accessibility_problems(page, "the open dialog") == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(opener).to_be_focused()
    assert ada.complaints == []


def test_token_is_created_shown_once_and_revoked(visit: Any, world: World) -> None:
    ada: Visit = visit(viewport={"width": 390, "height": 844})
    page = ada.open("/settings/tokens/")
    expect(page.get_by_text("No token yet")).to_be_visible()
    page.get_by_label("Purpose").fill("Nightly build")
    page.get_by_role("button", name="Create token").click()
    expect(page.locator("#new-token")).to_have_text(re.compile(r"kdv_[\w-]{43}"))
    expect(page.get_by_role("button", name="Copy")).to_be_visible()
    assert accessibility_problems(page, "a new token") == []
    page.goto("/settings/tokens/")
    expect(page.locator("#new-token")).to_have_count(0)
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Revoke Nightly build").click()
    expect(page.get_by_text("Token revoked")).to_be_visible()
    assert ada.complaints == []
