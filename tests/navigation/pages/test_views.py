"""What the palette finds: only what its user may see, within limits, also without JavaScript."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from sessions_app.board.services.tasks import create_session
from sessions_app.models import Task
from sessions_app.navigation.services import MAX_FOUND
from tests.pages.world import World, asks, ingest_lines, path_of


def find(client: Client, text: str = "") -> dict[str, list[dict[str, Any]]]:
    """Return what is found, by the title of its group."""
    answer = client.get("/find/", {"q": text}, headers={"Accept": "application/json"})
    assert answer.status_code == 200
    return {group["title"]: group["found"] for group in answer.json()["groups"]}


def test_sessions_and_tasks_are_found_by_their_words(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks())
    expected = {
        "text": "Fix the tests",
        "note": "Demo",
        "state": "Asks for permission",
        "tone": "ask",
        "url": path_of(session),
    }
    for text in ("", "fix", "DEMO"):
        assert find(ada, text)["Sessions"] == [expected], text
    assert find(ada, "the tests")["Tasks"][0]["url"] == f"/tasks/{session.task_id}/"
    assert "Sessions" not in find(ada, "mend")


def test_only_what_the_user_may_see_is_found(bob: Client, staff: Client, world: World) -> None:
    world.running_session()
    for text in ("", "fix"):
        found = find(bob, text)
        assert not {"Sessions", "Tasks"} & set(found), text
    assert [place["text"] for place in find(bob, "admin").get("Pages", [])] == []
    assert [place["url"] for place in find(staff, "admin")["Pages"]] == ["/admin/"]


def test_nothing_is_offered_of_tasks_that_are_over_until_it_is_searched(ada: Client, world: World) -> None:
    world.running_session()
    Task.objects.update(state="DONE")
    assert "Sessions" not in find(ada)
    assert find(ada, "fix")["Sessions"]


def test_queries_and_results_are_bounded_however_much_there_is(ada: Client, world: World) -> None:
    world.running_session()
    with CaptureQueriesContext(connection) as few:
        find(ada, "fix")
    for _ in range(MAX_FOUND + 2):
        create_session(world.ada, world.task(), world.profile, world.executor, prompt="")
    with CaptureQueriesContext(connection) as many:
        found = find(ada, "fix" + " " * 10_000)
    assert len(many) <= len(few), "a session that claims to run takes one more"
    assert [len(found[title]) for title in ("Sessions", "Tasks")] == [MAX_FOUND, MAX_FOUND]


@pytest.mark.parametrize("text", ["%", "_", "\0", "'; drop table", "\u202e", "😀" * 300])
def test_strange_queries_are_only_text(text: str, ada: Client, world: World) -> None:
    world.running_session()
    found = find(ada, text)
    assert ("Sessions" in found) == (text == "\0"), "an empty query"


def test_page_without_javascript_shows_the_same(ada: Client, world: World) -> None:
    session = world.running_session()
    html = ada.get("/find/", {"q": "fix <b>"}).text
    assert '<a href="/search/?q=fix+%3Cb%3E">Search messages for “fix &lt;b&gt;”</a>' in html
    assert path_of(session) not in html
    assert 'value="fix &lt;b&gt;"' in html
    html = ada.get("/find/", {"q": "fix"}).text
    assert f'<a href="{path_of(session)}">Fix the tests</a>' in html
    assert '<span class="pill busy">Working</span>' in html
