"""A member of staff adds and changes an agent and an executor in a browser: keyboard, phone, dark, without scripts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from executors_app.models import AgentProfile, Executor
from sessions_app.catalogue.services.offers import default_executor
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import Visit, navigating
from tests.pages.world import World

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


def press(page: Page, name: str, role: str = "button") -> None:
    """Reach a button or link by the keyboard and press it; wait for the page that it opens."""
    target = page.locator("main").get_by_role(role, name=name, exact=True)  # type: ignore[arg-type]
    target.focus()
    with navigating(page):
        page.keyboard.press("Enter")


def inspect(page: Page, where: str) -> None:
    assert accessibility_problems(page, where) == []
    assert page.evaluate(FITS), f"{where} is wider than its window"


def test_agent_and_executor_are_set_up_by_the_keyboard(visit: Callable[..., Visit], world: World) -> None:
    world.ada.is_staff = True
    world.ada.save()
    seen = visit(color_scheme="dark")
    page = seen.open("/settings/agents/")
    press(page, "New agent profile", "link")
    inspect(page, "the choice of an agent")
    page.get_by_role("searchbox", name="Search agents").fill("codex")
    with navigating(page):
        page.keyboard.press("Enter")
    press(page, "Choose Codex", "link")
    page.get_by_label("Name").fill("Our Codex")
    page.get_by_label("Key (OPENAI_API_KEY)").fill("sk-very-secret")
    page.get_by_text("More settings").click()
    page.get_by_label("Set variables").fill("REGION=north")
    press(page, "Add profile")
    expect(page.get_by_role("status").filter(has_text="Our Codex was added")).to_be_visible()
    assert "sk-very-secret" not in page.content()
    expect(page.get_by_text("A key is set")).to_be_visible()
    inspect(page, "an agent profile")
    press(page, "Disable")
    expect(page.locator("main .pill.off")).to_have_text("Disabled")
    made = AgentProfile.objects.get(name="Our Codex")
    assert made.env == {"OPENAI_API_KEY": "sk-very-secret", "REGION": "north"}
    page.goto("/settings/executors/new/")
    inspect(page, "the choice of a runtime")
    press(page, "Choose In containers on this machine", "link")
    page.get_by_label("Name").fill("A first one")
    page.get_by_label("Memory in MiB").fill("8192")
    press(page, "Add executor")
    inspect(page, "an executor")
    assert default_executor() == world.executor
    press(page, "Make default")
    expect(page.locator("main .pill.busy")).to_have_text("Default")
    assert default_executor() == Executor.objects.get(name="A first one")
    assert seen.unexpected() == []


def test_settings_fit_a_phone_and_work_without_scripts(visit: Callable[..., Visit], world: World) -> None:
    world.ada.is_staff = True
    world.ada.save()
    phone = visit(viewport={"width": 360, "height": 740})
    for address in ("/settings/agents/", "/settings/executors/", f"/settings/agents/{world.profile.pk}/"):
        inspect(phone.open(address), address)
    plain = visit(java_script_enabled=False)
    page = plain.open(f"/settings/executors/{world.executor.pk}/")
    page.get_by_label("Agents at once").fill("3")
    with navigating(page):
        page.get_by_role("button", name="Save").click()
    expect(page.get_by_label("Agents at once")).to_have_value("3")
    page.goto(f"/settings/executors/{world.executor.pk}/delete/")
    with navigating(page):
        page.get_by_role("button", name="Delete Here").click()
    expect(page.get_by_text("No executor yet")).to_be_visible()
    assert phone.unexpected() + plain.unexpected() == []
