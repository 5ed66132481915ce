"""The page of usage shows sums of the user's teams, and says for how many turns nothing is known."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from playwright.sync_api import expect

from sessions_app.models import TurnUsage
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET, navigating
from tests.pages.world import World, path_of
from tests.usage.ledger import used

pytestmark = pytest.mark.django_db(transaction=True)


def rows_of(page: str, table: str) -> list[tuple[str, ...]]:
    """Return the texts of the cells of one table."""
    part = page[page.index(f'id="{table}-title"') if f'id="{table}-title"' in page else page.index(f'id="{table}"') :]
    part = part[: part.index("</section>")]
    found = []
    for row in re.findall(r"<tr>\s*<th scope=\"row\">(.*?)</tr>", part, re.DOTALL):
        cells = [" ".join(re.sub(r"<svg.*?</svg>|<[^>]*>", " ", cell).split()) for cell in re.split(r"<td", row)]
        found.append(tuple(re.sub(r"^[^>]*> ?", "", cell) if number else cell for number, cell in enumerate(cells)))
    return found


def test_page_sums_by_agent_member_task_and_day(ada: Client, world: World) -> None:
    first, second = world.task("Mend the fence"), world.task("Count the fish")
    used(first, member=world.ada, tokens=1200, cost=0.5, currency="USD", agent_type="claude_code")
    used(first, member=world.ada, days_ago=1, agent_type="claude_code")
    used(second, tokens=30, cost=2.0, currency="EUR")
    used(second, days_ago=200, tokens=5)
    page = ada.get("/usage/").text
    assert "1,230 tokens, 2.00 EUR, 0.50 USD in 3 turns (1 turn without tokens, 1 turn without a cost)" in page
    assert rows_of(page, "tasks") == [
        ("Mend the fence", "1,200 tokens", "0.50 USD", "2 1 turn without tokens, 1 turn without a cost"),
        ("Count the fish", "30 tokens", "2.00 EUR", "1"),
    ]
    assert [row[0] for row in rows_of(page, "agents")] == ["Claude Code", "Demo agent"]
    assert [row[0] for row in rows_of(page, "members")] == ["ada", "Nobody known"]
    assert [row[1] for row in rows_of(page, "by-day")] == ["1,230 tokens", "Not reported"]
    assert "1,235 tokens" in ada.get("/usage/?days=365").text
    assert "30 tokens" in ada.get(f"/usage/?task={second.id}").text


def test_usage_of_other_teams_is_neither_summed_nor_named(ada: Client, bob: Client, world: World) -> None:
    task = world.task("Mend the fence")
    used(task, tokens=77, member=world.ada)
    page = bob.get("/usage/").text
    assert "0 tokens in 0 turns" in page
    assert "fence" not in page
    for query in (f"task={task.id}", f"team={world.team.pk}"):
        assert bob.get(f"/usage/?{query}").status_code == 404
        assert "77 tokens" in ada.get(f"/usage/?{query}").text


@pytest.mark.parametrize(("days", "next_step"), [(30, "Choose a longer period."), (365, "when they have ended")])
def test_page_without_turns_offers_a_longer_period_only_where_there_is_one(
    days: int, next_step: str, ada: Client, world: World
) -> None:
    page = ada.get(f"/usage/?days={days}").text
    assert next_step in page
    assert ("Choose a longer period." in page) is (days != 365)


@pytest.mark.parametrize(
    "query",
    [
        "days=8",
        "days=x",
        "days=-7",
        "team=x",
        "team=0",
        "task=x",
        f"team={'9' * 30}",
        "day=x",
        "day=2026-13-01",
        "agent=%00",
        "member=x",
    ],
)
def test_unknown_periods_teams_and_tasks_are_not_found(query: str, ada: Client, world: World) -> None:
    assert ada.get(f"/usage/?{query}").status_code == 404


def test_each_row_leads_to_its_turns_and_these_to_their_sessions(ada: Client, world: World) -> None:
    session = world.resting_session()
    TurnUsage.objects.all().delete()
    used(session.task, session_id=session.id, member=world.ada, tokens=7, agent_type="claude_code")
    used(session.task, days_ago=1, tokens=30)
    page = ada.get("/usage/").text
    links = [html.unescape(found) for found in re.findall(r'href="(\?[^"]*)#turns"', page)]
    assert {link.split("=")[0] for link in links} == {"?agent", "?member", "?task", "?day"}
    assert f'href="{path_of(session)}"' in page
    for link in links:
        found = ada.get(f"/usage/{link}").text
        [total] = re.findall(r'id="usage-total"><strong>(\d+) tokens', found)
        assert sum(int(row[4].split()[0]) for row in rows_of(found, "turns")) == int(total), link
    assert "Only agent <strong>Claude Code</strong>" in ada.get("/usage/?agent=claude_code").text
    [row] = rows_of(ada.get(f"/usage/?member={world.ada.pk}").text, "turns")
    assert (row[2], row[3], row[4]) == ("Claude Code", "ada", "7 tokens")


def test_days_are_labelled_with_their_zone(ada: Client, world: World) -> None:
    used(world.task(), tokens=7)
    page = ada.get("/usage/").text
    assert "By day, UTC" in page
    assert re.search(r"to \d+ \w+ \d{4}, UTC\.", page)


def test_turn_of_a_deleted_session_has_no_link(ada: Client, world: World) -> None:
    used(world.task("Count the fish"), tokens=7)
    [row] = rows_of(ada.get("/usage/").text, "turns")
    assert row[0] == "Count the fish Its session was deleted."


def test_choice_of_other_teams_turns_finds_nothing(bob: Client, world: World) -> None:
    used(world.task(), tokens=77, member=world.ada, agent_type="secret_agent")
    assert bob.get("/usage/?agent=" + "x" * 10_000).status_code == 404
    for query in ("agent=secret_agent", f"member={world.ada.pk}", f"member={'9' * 18}"):
        page = bob.get(f"/usage/?{query}").text
        assert "0 tokens in 0 turns" in page
        assert "ada" not in page


def test_deleted_task_and_account_keep_their_figures_without_a_name(ada: Client, world: World) -> None:
    task = world.task("Secret plan")
    used(task, tokens=77)
    task.delete()
    TurnUsage.objects.update(member_id=10**6)
    page = ada.get("/usage/").text
    assert "Secret plan" not in page
    assert rows_of(page, "tasks")[0][:2] == ("A deleted task", "77 tokens")
    assert rows_of(page, "members")[0][:2] == ("A deleted account", "77 tokens")


def test_number_of_queries_does_not_grow_and_lists_have_an_end(ada: Client, world: World) -> None:
    used(world.task(), tokens=1)
    numbers = []
    for begin, end in ((0, 60), (60, 120)):
        for number in range(begin, end):
            used(world.task(f"Task {number}"), days_ago=number % 20, tokens=number, agent_type=f"agent-{number}")
        ada.get("/usage/")
        with CaptureQueriesContext(connection) as queries:
            page = ada.get("/usage/").text
        numbers.append(len(queries))
        rows = rows_of(page, "tasks")
        assert (len(rows), rows[-1][0]) == (51, f"{end - 49} other tasks")
        assert sum(int(row[1].split()[0].replace(",", "")) for row in rows) == 1 + sum(range(end))
    assert numbers[0] == numbers[1]


def test_members_that_are_not_known_are_in_the_sum_of_others(ada: Client, world: World) -> None:
    task = world.task()
    for number in range(50):
        used(task, member_id=10**6 + number, tokens=10 + number)
    used(task, tokens=3)
    rows = rows_of(ada.get("/usage/").text, "members")
    assert (len(rows), rows[-1][:2]) == (51, ("1 other member", "3 tokens"))
    used(task, tokens=1000)
    rows = rows_of(ada.get("/usage/").text, "members")
    assert (rows[0][:2], rows[-1][:2]) == (("Nobody known", "1,003 tokens"), ("1 other member", "10 tokens"))


def test_session_and_task_page_show_their_sum_and_lead_to_the_page(ada: Client, world: World) -> None:
    session = world.resting_session()
    TurnUsage.objects.all().delete()
    for path in (path_of(session), f"/tasks/{session.task_id}/"):
        assert 'id="usage"' not in ada.get(path).text
    used(session.task, session_id=session.id, tokens=40)
    used(session.task, session_id=session.id)
    used(session.task, tokens=2)
    page = ada.get(path_of(session)).text
    assert "40 tokens in 2 turns (1 turn without tokens)" in page
    assert f'href="/usage/?task={session.task_id}"' in page
    page = ada.get(f"/tasks/{session.task_id}/").text
    assert "42 tokens in 3 turns (1 turn without tokens)" in page
    assert f'href="/usage/?task={session.task_id}"' in page


@pytest.mark.browser
@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("usage-telephone-dark", 360, "dark"), ("usage-light", 1280, "light")]
)
def test_page_fits_a_phone_in_both_themes_and_needs_no_script(
    name: str, width: int, scheme: str, visit: Any, world: World, picture: Any
) -> None:
    for number in range(40):
        task = world.task(f"Task {number} with a rather long title that has to be broken somewhere")
        used(task, days_ago=number % 25, tokens=number * 1000, member=world.ada, cost=0.1, currency="USD")
    ada = visit(viewport={"width": width, "height": 740}, color_scheme=scheme)
    page = ada.open(f"/usage/?task={task.id}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page = ada.open("/usage/")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert accessibility_problems(page) == []
    assert page.locator(".usage-chart rect").count() == 30
    picture(page, name)
    page.get_by_label("Period").select_option("7")
    with navigating(page):
        page.get_by_role("button", name="Show").click()
    expect(page.locator(".usage-chart rect")).to_have_count(7)
    assert ada.unexpected(*NO_SOCKET) == []
