"""Questions of agents on a session's page: the form, its errors, links, and what readers see."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from executors_app.wire.questions.schema import options_of, parse_question
from sessions_app.accounts.models import TeamRole
from sessions_app.models import TaskSession
from sessions_app.permissions.services import undelivered_content
from tests.pages.world import World, ingest_lines, path_of

pytestmark = pytest.mark.any_database

COLORS = [{"const": color, "title": color.title(), "description": f"a {color} one"} for color in ("red", "blue")]
FIELDS: dict[str, Any] = {
    "color": {"type": "string", "title": "Color", "oneOf": COLORS},
    "size": {"type": "string", "enum": [f"size {number}" for number in range(9)], "default": "size 3"},
    "extras": {"type": "array", "title": "Extras", "items": {"type": "string", "enum": ["bow", "card"]}, "maxItems": 1},
    "count": {"type": "integer", "title": "How many", "minimum": 1, "maximum": 5, "default": 2},
    "price": {"type": "number", "title": "Price"},
    "gift": {"type": "boolean", "title": "A gift", "default": True},
    "mail": {"type": "string", "format": "email", "title": "Mail"},
    "note": {"type": "string", "title": "Note", "description": "Anything <b>else</b>"},
    "code": {"type": "string", "pattern": "^[A-Z]+$", "title": "Code"},
}
FORM = {
    "mode": "form",
    "message": "What <i>kind</i>?",
    "requestedSchema": {"properties": FIELDS, "required": ["color"]},
}
LINK = {"mode": "url", "message": "Log in", "elicitationId": "e1"}
FILLED: dict[str, Any] = {
    "field-0": "red",
    "field-1": "size 3",
    "field-3": "2",
    "field-7": "line 1\r\nline 2",
    "field-8": "",
}


def ask(world: World, params: dict[str, Any]) -> TaskSession:
    session, question = world.running_session(), parse_question(params)
    call = {"title": question["message"], "tool_call_id": ""}
    line = {"kind": "permission.requested", "permission_id": "q1", "tool_call": call, "question": question}
    ingest_lines(session, {**line, "options": options_of(question)})
    return session


def send(
    client: Client, session: TaskSession, filled: Any = None, *, option: str = "accept", script: bool = False
) -> Any:
    html = client.get(path_of(session)).text
    key = re.findall(r'name="resume_token" value="(kwt_[\w-]+)"', html)[0]
    form = {"permission_id": "q1", "resume_token": key, "option_id": option, **(filled or {})}
    headers = {"Accept": "application/json"} if script else {}
    return client.post(f"{path_of(session)}answer/", form, headers=headers)


def test_form_shows_every_kind_of_field_with_its_default(ada: Client, world: World) -> None:
    session = ask(world, FORM)
    html = ada.get(path_of(session)).text
    assert "Asks a question" in html
    assert "What &lt;i&gt;kind&lt;/i&gt;?" in html
    assert "Anything &lt;b&gt;else&lt;/b&gt;" in html
    for expected in (
        'type="radio" name="field-0" value="red" required',
        "a blue one",
        '<option value="size 3" selected>',
        'type="checkbox" name="field-2" value="bow"',
        "At most 1.",
        'type="number" name="field-3" value="2"',
        'step="any"',
        'type="checkbox" name="field-5" value="1" aria-describedby="qq1-field-5-help qq1-field-5-error" checked',
        'type="email" name="field-6"',
        '<textarea id="qq1-field-7" name="field-7"',
        "Must match: ^[A-Z]+$",
        'value="decline" formnovalidate',
    ):
        assert expected in html
    assert "pattern=" not in html, "a hostile pattern never runs in a browser"


def test_filled_in_form_becomes_a_typed_answer(ada: Client, world: World) -> None:
    session = ask(world, FORM)
    send(ada, session, {**FILLED, "field-2": ["bow"], "field-4": "1.5"})
    assert undelivered_content(session.permissions.get()) == {
        "color": "red",
        "size": "size 3",
        "extras": ["bow"],
        "count": 2,
        "price": 1.5,
        "gift": False,
        "note": "line 1\nline 2",
    }
    html = ada.get(path_of(session)).text
    assert "Answered by ada. The answer is being sent" in html
    assert "field-0" not in html


def test_invalid_fields_are_marked_and_input_is_kept(ada: Client, world: World) -> None:
    session = ask(world, FORM)
    wrong = {**FILLED, "field-0": "", "field-3": "many", "field-6": "no address"}
    answer = send(ada, session, wrong)
    assert answer.status_code == 400
    for expected in (
        "This field is required.",
        "Expected a whole number.",
        "Expected an email address.",
        "line 1\nline 2",
    ):
        assert expected in answer.text
    assert answer.text.count('aria-invalid="true"') == 3
    response = send(ada, session, wrong, script=True)
    assert (response.status_code, response.json()["code"]) == (409, "invalid_answer")
    assert response.json()["fields"].keys() == {"field-0", "field-3", "field-6"}
    assert not session.intents.filter(kind="answer").exists()


def test_declining_needs_no_field(ada: Client, world: World) -> None:
    session = ask(world, FORM)
    send(ada, session, option="decline")
    assert session.intents.get(kind="answer").payload == {"permission_id": "q1", "option_id": "decline"}


def test_link_names_its_host_and_opens_nothing_by_itself(ada: Client, world: World) -> None:
    url = "http://xn--exmple-cua.org/login?next=/&x=1"
    session = ask(world, {**LINK, "url": url})
    html = ada.get(path_of(session)).text
    shown = url.replace("&", "&amp;")
    assert f"<code>{shown}</code>" in html
    assert f'href="{shown}" target="_blank" rel="noopener noreferrer nofollow">Open xn--exmple-cua.org</a>' in html
    assert "is not encrypted" in html
    assert "unusual letters" in html
    send(ada, session)
    assert session.intents.get(kind="answer").payload == {"permission_id": "q1", "option_id": "accept"}


def test_viewer_reads_the_question_and_gets_no_form(ada: Client, world: World) -> None:
    session = ask(world, FORM)
    TeamRole.objects.create(user=User.objects.get(username="ada"), team=session.task.team, role=TeamRole.Role.VIEWER)
    html = ada.get(path_of(session)).text
    assert "What &lt;i&gt;kind&lt;/i&gt;?" in html
    assert "field-0" not in html
    assert "kwt_" not in html
    assert "waits for your answer" not in html
    assert "Answer or decline it." not in html
    assert "A member of the team has to answer." in html
