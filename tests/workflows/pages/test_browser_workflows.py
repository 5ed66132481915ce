"""Workflows in a real browser: the editor checks while typing, and the run page follows a run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from sessions_app.workflows.models import Workflow, WorkflowRun
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import Visit, navigating
from tests.pages.world import World, make_world, supervise
from tests.workflows.pages.workflow_rows import TEXT, looped_run, make_workflow, ran

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
DESK = {"width": 1280, "height": 900}


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


def test_editor_checks_while_typing_and_jumps_to_the_line(
    visit: Any, world: World, picture: Callable[[Page, str], None]
) -> None:
    workflow = make_workflow(world)
    ada: Visit = visit(viewport=DESK)
    page = ada.open(f"/workflows/{workflow.id}/")
    expect(page.locator(".workflow-graph")).to_contain_text("Review loop")
    picture(page, "workflow-editor")
    page.locator("#text").fill(TEXT.replace("parentId: loop", "parentId: nowhere", 1))
    problem = page.locator(".problems a").first
    expect(problem).to_have_text("Line 17")
    problem.click()
    chosen = page.evaluate("document.getElementById('text').value.slice(...[text.selectionStart, text.selectionEnd])")
    assert chosen == "    parentId: nowhere"
    assert Workflow.objects.get().text == TEXT
    page.locator("#text").fill(TEXT)
    expect(page.get_by_text("Can be run")).to_be_visible()
    assert ada.complaints == []


def test_node_settings_are_applied_to_the_text_and_saved(visit: Any, world: World) -> None:
    workflow = make_workflow(world)
    ada: Visit = visit(viewport=DESK)
    page = ada.open(f"/workflows/{workflow.id}/")
    page.get_by_label("Step", exact=True).select_option("coder")
    page.get_by_label("Keep the session").check()
    page.get_by_role("button", name="Apply to the text").press("Enter")
    expect(page.locator("#text")).to_have_value(re.compile("resumable: true"))
    assert accessibility_problems(page, "the settings of a node") == []
    with navigating(page):
        page.get_by_role("button", name="Save").first.click()
    expect(page.get_by_text("Saved.", exact=True)).to_be_visible()
    kept = Workflow.objects.get().text
    assert "label: Coder   # its name stays" in kept
    assert "taskPrompt" in kept
    assert [one for one in ada.complaints if "style" not in one] == []


def test_editor_buttons_work_without_javascript(visit: Any, world: World) -> None:
    workflow = make_workflow(world)
    ada: Visit = visit(viewport={"width": 390, "height": 844}, java_script_enabled=False)
    page = ada.open(f"/workflows/{workflow.id}/")
    page.locator("#text").fill(TEXT.replace("source: trigger", "source: nobody"))
    with navigating(page):
        page.get_by_role("button", name="Check").click()
    expect(page.locator(".problems").first).to_contain_text("nobody")
    page.locator("#node-choice").select_option("loop")
    with navigating(page):
        page.get_by_role("button", name="Show settings").click()
    page.get_by_label("Maximum iterations").fill("7")
    with navigating(page):
        page.get_by_role("button", name="Apply to the text").click()
    expect(page.locator("#text")).to_have_value(re.compile("maxIterations: 7"))
    expect(page.locator("#text")).to_have_value(re.compile("source: nobody"))
    assert ada.complaints == []


def test_run_page_follows_the_run_and_opens_nodes_by_keyboard(
    visit: Any, world: World, picture: Callable[[Page, str], None]
) -> None:
    run = looped_run(world, world.session())
    ada: Visit = visit(viewport=DESK)
    page = ada.open(f"/workflows/runs/{run.id}/")
    expect(page.get_by_text("coder is waiting for you.")).to_be_visible()
    page.locator("a[data-node='loop/coder']").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#node-title")).to_contain_text("Coder")
    picture(page, "workflow-run")
    page.get_by_role("navigation", name="Runs of this step").get_by_text("loop[1]/coder").click()
    expect(page.locator("#node-detail")).to_contain_text("I mended <it>")
    run.node_runs.filter(path="loop[2]/coder").update(state="succeeded", waiting_for="")
    run.node_runs.filter(path__in=("loop", "loop[2]")).update(state="succeeded")
    ran(run, "loop[2]/approved", kind="constant", outputs={"value": True})
    ran(run, "end", "failed", error="It ended with exit code 3.")
    WorkflowRun.objects.filter(id=run.id).update(state="failed", error="end failed")
    expect(page.locator("#state-title")).to_contain_text("Failed")
    expect(page.locator("#state-title")).to_contain_text("4 of 4 steps")
    expect(page.locator("#node-detail")).to_contain_text("I mended <it>")
    expect(page.get_by_role("button", name="Resume from here")).to_be_visible()
    page.go_back()
    expect(page.locator("#node-detail")).to_contain_text("2 of 2")
    assert ada.complaints == []
