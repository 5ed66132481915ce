"""The page on which requests are answered from inbox, board or a notification, and where it leads back to."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client
from django.utils.http import MAX_URL_REDIRECT_LENGTH

from sessions_app.accounts.models import TeamRole
from sessions_app.models import TaskSession
from tests.pages.world import World, asks, ingest_lines, path_of
from tests.permissions.pages.test_question_forms import FORM, ask

pytestmark = pytest.mark.any_database

OPTIONS = [
    {"option_id": kind, "name": f"name of {kind}", "kind": kind}
    for kind in ("allow_always", "reject_always", "allow_once", "reject_once")
]
COMMAND = "make deploy\necho done"


def asks_to_run(request_id: str = "p1") -> dict[str, Any]:
    """Return the line of a request to run ``COMMAND``, with every kind of option."""
    call = {"title": "Deploy", "tool_kind": "execute", "raw_input": {"command": COMMAND}}
    return {**asks(request_id, **call), "options": OPTIONS}


def page_of(session: TaskSession, **query: str) -> str:
    """Return the path of the page, with a query string."""
    return f"{path_of(session)}requests/?{urlencode(query)}"


def fields_of(html: str) -> dict[str, str]:
    """Return the hidden fields of the first card."""
    marker = next(one for one in ('class="card asks', '<form method="post"') if one in html)
    card = html[html.index(marker) :]
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', card[: card.index("</form>")]))


def buttons_of(html: str) -> list[str]:
    """Return the ids of the options that can be chosen."""
    return re.findall(r'<button[^>]*name="option_id" value="(\w+)"', html)


def answer(client: Client, session: TaskSession, option: str, html: str) -> Any:
    return client.post(f"{path_of(session)}answer/", {**fields_of(html), "option_id": option}, follow=True)


@pytest.mark.parametrize("place", ["/", "/attention/", "/attention/?mine=1"])
def test_answer_leads_back_to_where_the_link_was(place: str, ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks_to_run())
    link = f"{path_of(session)}requests/"
    assert link in ada.get(place).text
    html = ada.get(link, headers={"Referer": f"http://testserver{place}"}).text
    assert html.index("echo done") < html.index('value="allow_once"'), "the whole command is above its answers"
    done = answer(ada, session, "allow_once", html)
    assert done.redirect_chain == [(place, 302)]
    assert "Your answer is on its way to the agent." in done.text
    assert session.intents.get(kind="answer").payload == {"permission_id": "p1", "option_id": "allow_once"}


def test_only_answers_for_this_time_are_offered(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks_to_run())
    html = ada.get(page_of(session, request="p1")).text
    assert buttons_of(html) == ["allow_once", "reject_once"]
    assert "Answers that last are given on the" in html
    assert "allow_always" in buttons_of(ada.get(path_of(session)).text)


def test_request_that_was_answered_meanwhile_says_so(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks_to_run())
    page, live = page_of(session, request="p1"), page_of(session, request="p1").replace("requests/", "requests/live/")
    html = ada.get(page).text
    answer(ada, session, "allow_once", html)
    assert "Answered by ada. The answer is being sent to the agent." in ada.get(live).json()["parts"]["requests"]
    second = answer(ada, session, "reject_once", html)
    assert "ada has already answered this: name of allow_once." in second.text
    ingest_lines(session, {"kind": "permission.resolved", "permission_id": "p1", "option_id": "allow_once"})
    for text in (ada.get(page).text, ada.get(live).json()["parts"]["requests"]):
        assert "Answered with “name of allow_once” by ada." in text
        assert buttons_of(text) == []
    assert session.intents.filter(kind="answer").count() == 1


def test_request_whose_agent_ended_says_so(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks_to_run(), {"kind": "agent.exited", "exit_code": 9, "expected": False})
    html = ada.get(page_of(session, request="p1")).text
    assert "The agent ended before it got an answer" in html
    assert (buttons_of(html), "kwt_" in html) == ([], False)


def test_page_without_a_request_lists_all_that_are_open(ada: Client, world: World) -> None:
    session = world.running_session()
    assert "Nothing to answer" in ada.get(page_of(session)).text
    assert "Nothing to answer" in ada.get(page_of(session, request="p1")).text
    ingest_lines(session, asks_to_run("p1"), asks_to_run("p2"))
    assert buttons_of(ada.get(page_of(session)).text) == ["allow_once", "reject_once"] * 2
    assert buttons_of(ada.get(page_of(session, request="p2")).text) == ["allow_once", "reject_once"]


def test_viewer_reads_the_request_and_gets_neither_links_nor_answers(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks_to_run())
    TeamRole.objects.update_or_create(user=world.ada, team=world.team, defaults={"role": "viewer"})
    html = ada.get(page_of(session, request="p1")).text
    assert "echo done" in html
    assert (buttons_of(html), "kwt_" in html) == ([], False)
    assert not any("/requests/" in ada.get(place).text for place in ("/", "/attention/"))


@pytest.mark.parametrize("request_id", ["p\0", "p" * 1000, "p%", "../p1"])
def test_id_that_no_request_can_have_finds_nothing(request_id: str, ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks_to_run())
    page = page_of(session, request=request_id)
    for address in (page, page.replace("requests/", "requests/live/")):
        answer = ada.get(address)
        assert (answer.status_code, buttons_of(answer.text)) == (200, [])


@pytest.mark.parametrize(
    "place",
    ["https://elsewhere.example/", "//elsewhere.example/", "javascript:alert(1)", "x", "http://[", "http://[x]/"],
)
def test_page_never_leads_to_another_site(place: str, ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks_to_run())
    html = ada.get(page_of(session, next=place)).text
    assert fields_of(html)["next"] == "/attention/"
    assert fields_of(ada.get(page_of(session), headers={"Referer": place}).text)["next"] == "/attention/"
    forged = ada.post(f"{path_of(session)}answer/", {**fields_of(html), "option_id": "allow_once", "next": place})
    assert "elsewhere" not in forged.headers["Location"]


def test_answer_leads_to_its_session_if_the_way_back_is_too_long(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks_to_run())
    fields = fields_of(ada.get(page_of(session)).text)
    way_back = f"/?q={'x' * MAX_URL_REDIRECT_LENGTH}"
    done = ada.post(f"{path_of(session)}answer/", {**fields, "option_id": "allow_once", "next": way_back})
    assert (done.status_code, done.headers["Location"]) == (302, path_of(session))
    assert session.intents.filter(kind="answer").count() == 1


def test_refused_answer_to_a_question_can_be_corrected_and_leads_back(ada: Client, world: World) -> None:
    session = ask(world, FORM)
    html = ada.get(page_of(session, request="q1", next="/?mine=1")).text
    assert "Send answer" in html
    refused = answer(ada, session, "accept", html)
    assert (refused.status_code, fields_of(refused.text)["next"]) == (400, "/?mine=1")
    corrected = ada.post(
        f"{path_of(session)}answer/", {**fields_of(refused.text), "option_id": "accept", "field-0": "red"}
    )
    assert corrected.headers["Location"] == "/?mine=1"
    text = ada.get(page_of(session, request="q1")).text
    assert "Answered by ada" in text
