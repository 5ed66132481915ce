"""The API of the search."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from tests.api.world import World, client_of
from tests.search.conversations import index_all, say

pytestmark = pytest.mark.django_db


def test_result_has_snippet_session_and_address(world: World, api: APIClient) -> None:
    message = say(world.session, "agent", "Mend <b>the</b> fence")
    index_all()
    body = api.get("/api/v1/search/", {"q": "fen", "session": str(world.session.id)}).json()
    [result] = body.pop("results")
    assert body == {
        "count": 1,
        "is_complete": True,
        "next_page": None,
        "index": {"behind": 0, "indexed_up_to": None, "left_out": 0},
    }
    assert result.pop("at")
    assert result == {
        "kind": "agent",
        "task_id": str(world.task.id),
        "task_title": world.task.title,
        "task_state": world.task.state,
        "session_id": str(world.session.id),
        "message_id": str(message.id),
        "seq": message.seq,
        "author": "Agent",
        "snippet": [{"text": "Mend <b>the</b> ", "marked": False}, {"text": "fence", "marked": True}],
        "url": f"/tasks/{world.task.id}/sessions/{world.session.id}/?at={message.seq}#m-{message.id}",
    }
    assert client_of(world.stranger).get("/api/v1/search/?q=fen").json()["results"] == []


@pytest.mark.parametrize(
    "query",
    ["q=" + "x" * 201, "q=x&session=5", "q=x&state=LOST", "q=x&who=cat", "q=x&order=up", "page=0", "page_size=101"],
)
def test_what_is_not_valid_is_refused(query: str, world: World, api: APIClient) -> None:
    answer = api.get(f"/api/v1/search/?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "validation_error")


def test_every_text_is_a_query(world: World, api: APIClient) -> None:
    for text in ("", '"', "'", "a*", "NEAR(", "a AND", "^", "{", "\\", "%", "&!|", "() :*", "a:b", "😀", "\u202e", "٣"):
        assert api.get("/api/v1/search/", {"q": text}).status_code == 200, text
