"""The search page works without a script, escapes what it shows, and says what it does not know."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from sessions_app.models import TaskSession
from tests.pages.world import World, path_of
from tests.search.conversations import index_all, say

pytestmark = pytest.mark.django_db


@pytest.fixture
def session(world: World) -> TaskSession:
    """Return a session whose conversation is indexed."""
    made = world.session()
    say(made, "agent", "<img src=x onerror=alert(1)> zebra \u202e crossing")
    index_all()
    return made


def test_result_is_escaped_marked_and_linked(ada: Client, session: TaskSession) -> None:
    page = ada.get("/search/?q=zebra").content.decode()
    assert "1 result<" in page
    assert "&lt;img src=x onerror=alert(1)&gt; <mark>zebra</mark> ⟦RLO⟧ crossing" in page
    message = session.messages.get()
    assert f'href="{path_of(session)}?at={message.seq}#m-{message.id}"' in page


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", "Search"),
        ("q=giraffe", "No matches"),
        ("q=zebra&who=task", "No matches"),
        ("q=zebra&order=best", "1 result<"),
        ("q=zebra&page=50", "No matches"),
        ("q=zebra&page=x&order=x&state=x", "1 result<"),
        ("q=zebra&who=everybody", "Expected user, agent, tool, task"),
        ("q=" + "x" * 201, "at most 200 characters"),
        ("q=%22", "Search"),
        ("q=%00", "Null characters are not allowed"),
        ("q=" + "+".join(map(str, range(14))), "Only the first 12 words were searched."),
    ],
)
def test_every_query_has_a_page(query: str, shown: str, ada: Client, session: TaskSession) -> None:
    answer = ada.get(f"/search/?{query}")
    assert answer.status_code == 200
    assert shown in answer.content.decode()


def test_search_in_a_session_finds_only_its_texts(ada: Client, bob: Client, world: World, session: TaskSession) -> None:
    other = world.session()
    say(other, "agent", "another zebra")
    index_all()
    assert "2 results<" in ada.get("/search/?q=zebra").content.decode()
    page = ada.get(f"/search/?q=zebra&session={session.id}").content.decode()
    assert "1 result<" in page
    assert "Search in this session" in page
    assert bob.get(f"/search/?q=zebra&session={session.id}").status_code == 404
    assert "No matches" in bob.get("/search/?q=zebra").content.decode()


def test_page_says_how_far_the_index_is(ada: Client, world: World, session: TaskSession) -> None:
    assert "search-index" not in ada.get("/search/").content.decode()
    say(session, "agent", "newer")
    page = ada.get("/search/?q=newer").content.decode()
    assert "1 session has newer text that is not searched yet. Indexed up to" in page
    say(world.session(), "agent", "another")
    page = ada.get("/search/?q=newer").content.decode()
    assert "2 sessions have newer text that is not searched yet. Not all of them have been indexed yet." in page


def test_pages_of_results_are_linked(ada: Client, session: TaskSession) -> None:
    for number in range(25):
        say(session, "agent", f"giraffe {number}")
    index_all()
    first = ada.get("/search/?q=giraffe&who=agent").content.decode()
    assert ("Next page" in first, "Previous page" in first) == (True, False)
    assert "/search/?q=giraffe&amp;who=agent&amp;page=2" in first
    second = ada.get("/search/?q=giraffe&who=agent&page=2").content.decode()
    assert ("Next page" in second, "Previous page" in second) == (False, True)
    assert second.count('class="card result"') == 5


def test_session_page_has_a_search_field(ada: Client, session: TaskSession) -> None:
    page = ada.get(path_of(session)).content.decode()
    assert f'action="{reverse("search")}"' in page
    assert f'<input type="hidden" name="session" value="{session.id}">' in page
