"""Budgets are set on the pages of a session and of a team, and a prompt that waits for one is explained."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import expect

from sessions_app.accounts.models import TeamRole
from sessions_app.models import BudgetHold, TaskSession
from sessions_app.usage.budgets import budget_of_session, budget_of_team
from sessions_app.usage.rules.budgets import Limits
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET, navigating
from tests.pages.world import World, path_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_budget_of_a_session_is_set_on_its_page(ada: Client, world: World) -> None:
    session = world.resting_session()
    entered = {"budget_tokens": "1000", "budget_cost": "2.5", "budget_currency": "usd"}
    assert ada.post(f"{path_of(session)}budget/", entered).status_code == 302
    assert budget_of_session(session.id) == Limits(1000, 2.5, "USD")
    page = ada.get(path_of(session)).text
    assert "1,000 tokens and 2.50 USD" in page
    assert 'name="budget_tokens" min="0" step="1" value="1000"' in page
    ada.post(f"{path_of(session)}budget/", dict.fromkeys(entered, ""))
    assert budget_of_session(session.id) == Limits()


@pytest.mark.parametrize("entered", [{"budget_tokens": "-1"}, {"budget_tokens": "x"}, {"budget_cost": "5"}])
def test_wrong_budget_of_a_session_is_explained_and_not_saved(
    entered: dict[str, str], ada: Client, world: World
) -> None:
    session = world.resting_session()
    answer = ada.post(f"{path_of(session)}budget/", entered, follow=True)
    assert 'class="notice error"' in answer.text
    assert budget_of_session(session.id) == Limits()


def test_admins_of_a_team_set_its_budget(ada: Client, bob: Client, world: World) -> None:
    path = f"/settings/teams/{world.team.pk}/budget/"
    assert 'name="tokens"' not in ada.get(path).text
    assert ada.post(path, {"tokens": "5"}).status_code == 403
    TeamRole.objects.update_or_create(user=world.ada, team=world.team, defaults={"role": TeamRole.Role.ADMIN})
    assert ada.post(path, {"cost": "5"}).status_code == 422
    assert ada.post(path, {"tokens": "5"}).status_code == 302
    assert budget_of_team(world.team) == Limits(tokens=5)
    assert "5 tokens" in ada.get(path).text
    assert f'href="{path}"' in ada.get(f"/settings/teams/{world.team.pk}/").text
    assert bob.get(path).status_code == 404


def test_prompt_that_waits_for_a_budget_is_explained(ada: Client, world: World) -> None:
    session = world.resting_session(resume_token="t")
    session.prompts.create(message_id="p1", text="do it")
    BudgetHold.objects.create(session=session, scope="session", reason="used_up", limit="0 tokens", used="0 tokens")
    page = ada.get(path_of(session)).text
    assert "This session’s budget of 0 tokens is used up; used when it held the prompt back: 0 tokens." in page
    assert "It does not renew: only raising or removing it lets the prompt go." in page
    assert 'href="#budget-tokens"' in page
    assert 'id="budget-tokens"' in page
    assert "Over budget" in page
    assert "Over budget" in ada.get("/").text


def hold_for_the_team(world: World, reason: str = "used_up") -> TaskSession:
    session = world.resting_session(resume_token="t")
    session.prompts.create(message_id="p1", text="do it")
    BudgetHold.objects.create(session=session, scope="team", reason=reason, limit="5 tokens", used="6 tokens")
    return session


def test_used_up_budget_of_a_team_says_when_it_renews_and_who_may_raise_it(ada: Client, world: World) -> None:
    page = ada.get(path_of(hold_for_the_team(world))).text
    assert "It renews at midnight, UTC. Staff and the team’s admins can raise it before." in page
    assert f'href="/settings/teams/{world.team.pk}/budget/"' in page


def test_budget_that_waits_for_running_turns_offers_no_change(ada: Client, world: World) -> None:
    page = ada.get(path_of(hold_for_the_team(world, "running"))).text
    assert "The prompt is sent when these turns have ended, if they leave anything." in page
    assert f'href="/settings/teams/{world.team.pk}/budget/"' not in page


@pytest.mark.browser
def test_link_in_the_banner_opens_the_field_of_the_budget(visit: Any, world: World) -> None:
    session = world.resting_session(resume_token="t")
    session.prompts.create(message_id="p1", text="do it")
    BudgetHold.objects.create(session=session, scope="session", reason="used_up", limit="0 tokens", used="0 tokens")
    for width in (360, 1280):
        ada = visit(viewport={"width": width, "height": 740})
        page = ada.open(path_of(session))
        field = page.locator("#budget-tokens")
        expect(field).to_be_hidden()
        page.get_by_role("link", name="Change the budget").click()
        expect(field).to_be_visible()
        expect(field).to_be_focused()


@pytest.mark.browser
def test_budget_is_set_on_a_dark_phone(visit: Any, world: World) -> None:
    session = world.resting_session(resume_token="t")
    ada = visit(viewport={"width": 360, "height": 740}, color_scheme="dark")
    page = ada.open(path_of(session))
    page.get_by_role("tab", name="Session").click()
    page.get_by_text("Budget of this session").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert accessibility_problems(page) == []
    page.get_by_label("Tokens", exact=True).fill("5000")
    with navigating(page):
        page.get_by_role("button", name="Save budget").click()
    expect(page.locator("#budget")).to_contain_text("5,000 tokens")
    assert ada.unexpected(*NO_SOCKET) == []
