"""Comments on the page of a branch's changes, with forms alone."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sessions_app.models import Prompt, ReviewComment, TaskSession
from tests.pages.world import path_of

pytestmark = pytest.mark.any_database


def post(client: Any, session: TaskSession, **values: Any) -> str:
    answer = client.post(f"{path_of(session)}changes/comments/", values, follow=True)
    assert answer.status_code == 200
    return str(answer.content.decode())


def test_comments_are_written_changed_and_sent_with_forms(ada: Any, bob: Any, session: TaskSession) -> None:
    page = ada.get(f"{path_of(session)}changes/").content.decode()
    key = re.findall(r'name="id" value="([0-9a-f-]{36})"', page)[0]
    about = {"action": "add", "path": "code.py", "side": "old", "first_line": "51", "text": "Why?", "id": key}
    for _ in range(2):
        html = post(ada, session, **about)
    assert "Comments to send (1)" in html
    assert "line 51</p>" not in html
    assert "line 51 before the change" in html
    row = ReviewComment.objects.get()
    assert (row.excerpt, row.author_name) == ("line 50", "ada")
    assert "Comment saved." in post(ada, session, action="edit", id=str(row.id), text="Why <b>?")
    stranger = {"action": "edit", "id": str(row.id), "text": "No"}
    assert bob.post(f"{path_of(session)}changes/comments/", stranger).status_code == 404
    assert "Why &lt;b&gt;?" in ada.get(f"{path_of(session)}changes/").content.decode()

    assert "have changed meanwhile" in post(ada, session, action="send", message_id="m")
    html = post(ada, session, action="send", message_id="m", comment=[str(row.id)])
    assert "Sent comments (1)" in html
    assert Prompt.objects.get(message_id="m").text.endswith("Why <b>?")
    assert "was sent to the agent" in post(ada, session, action="delete", id=str(row.id))


@pytest.mark.parametrize(
    "values",
    [{"first_line": "x"}, {"first_line": "999"}, {"side": "left"}, {"path": ""}, {"path": "../up"}, {"text": " "}],
)
def test_invalid_comment_is_explained(ada: Any, session: TaskSession, values: dict[str, str]) -> None:
    about = {"path": "code.py", "first_line": "51", "text": "x", "id": "0" * 32, **values}
    html = post(ada, session, action="add", **about)
    assert "error" in html
    assert not ReviewComment.objects.exists()
    assert ada.post(f"{path_of(session)}changes/comments/", {"action": "else"}).status_code == 404
