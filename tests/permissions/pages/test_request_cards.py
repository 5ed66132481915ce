"""Permission requests and external waits on a session's page, with their keys."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from sessions_app.models import TaskSession, session_transaction
from sessions_app.waits.expiry import expire_waits
from sessions_app.waits.models import revoke_wait_keys
from sessions_app.waits.services import open_wait
from tests.attention.reading import as_read
from tests.pages.world import World, asks, ingest_lines, path_of

pytestmark = pytest.mark.any_database


def page(client: Client, session: TaskSession) -> str:
    return str(client.get(path_of(session)).text)


def key_of(html: str) -> str:
    """Return the resume token in the page's form."""
    return str(re.findall(r'name="resume_token" value="(kwt_[\w-]+)"', html)[0])


def test_permission_button_records_the_answer(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks("p1", title="Push to main"))
    html = page(ada, session)
    assert "Push to main" in html
    assert "Asks for permission" in html
    form = {"permission_id": "p1", "option_id": "allow", "resume_token": key_of(html)}
    assert all(f'value="{value}"' in html for value in form.values())

    ada.post(f"{path_of(session)}answer/", form)

    intent = session.intents.get(kind="answer")
    assert intent.payload == {"permission_id": "p1", "option_id": "allow"}
    assert "Answered by ada. The answer is being sent" in page(ada, session)


def test_request_with_a_card_is_not_listed_among_the_waits_again(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks("p1", title="Push", raw_input={"command": "git push"}))
    html = page(ada, session)
    assert re.search(r'<section class="card" aria-labelledby="waits-title"[^>]* hidden>', html)
    assert "Other waits" not in html
    assert "git push" in html


UNKNOWN_CALLS: list[dict[str, object]] = [
    {"title": ""},
    {"title": " \u200b\u2800"},
    {"title": "", "tool_kind": "other"},
    {"title": "", "tool_kind": " ", "raw_input": {}},
    {"title": "", "raw_input": {"command": ["", None]}, "locations": [{"path": ""}]},
    {"title": "", "content": [{"type": "content", "content": {"type": "text", "text": ""}}]},
]
KNOWN_CALLS: list[dict[str, object]] = [
    {"title": "Push"},
    {"title": "", "tool_kind": "execute"},
    {"title": "", "raw_input": "rm"},
    {"title": "", "raw_input": {"force": False}},
    {"title": "", "locations": [{"path": "a.py"}]},
    {"title": "", "content": [{"type": "content", "content": {"type": "text", "text": "It deletes all."}}]},
]
SENTENCE = "The agent does not say what it wants to do."


def asks_with_every_option(tool_call: dict[str, object]) -> dict[str, object]:
    """Return the line of a request that offers the lasting answers, too."""
    line = asks("p1", **tool_call)
    kinds = ("allow_always", "allow_once", "reject_once", "reject_always")
    return {**line, "options": [{"option_id": kind, "name": f"name of {kind}", "kind": kind} for kind in kinds]}


def offered_buttons(html: str) -> list[tuple[str, str, bool]]:
    """Return id, text and whether it is the main one of each answer that a page offers."""
    found = re.findall(r'<button[^>]*name="option_id" value="(\w+)"([^>]*)>([^<]*)</button>', html)
    return [(option, text.strip(), "main" in about) for option, about, text in found]


@pytest.mark.parametrize("tool_call", UNKNOWN_CALLS)
def test_unknown_action_offers_to_reject_it_first_and_nothing_lasting(
    tool_call: dict[str, object], ada: Client, world: World
) -> None:
    session = world.running_session()
    ingest_lines(session, asks_with_every_option(tool_call))
    html = page(ada, session)
    assert SENTENCE in html
    assert "Unnamed action" not in html
    assert offered_buttons(html) == [
        ("reject_once", "name of reject_once", True),
        ("allow_once", "Unknown action: name of allow_once", False),
        ("reject_always", "name of reject_always", False),
    ]
    item = session.attention.get(kind="permission")
    assert item.why == SENTENCE
    assert "reject" in item.next_step


@pytest.mark.parametrize("tool_call", KNOWN_CALLS)
def test_described_action_offers_to_allow_it_first(tool_call: dict[str, object], ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks_with_every_option(tool_call))
    html = page(ada, session)
    assert SENTENCE not in html
    assert offered_buttons(html)[0] == ("allow_once", "name of allow_once", True)
    assert "allow_always" in [option for option, *_ in offered_buttons(html)]


def test_unknown_action_that_cannot_be_rejected_says_what_to_do_instead(ada: Client, world: World) -> None:
    session = world.running_session()
    options = [{"option_id": "allow", "name": "Allow", "kind": "allow_once"}]
    ingest_lines(session, {**asks("p1", title=""), "options": options})
    html = page(ada, session)
    assert "cancel the turn" in html
    assert offered_buttons(html) == [("allow", "Unknown action: Allow", False)]


def test_unknown_action_cannot_be_allowed_lastingly_with_a_request(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks_with_every_option({"title": ""}))
    form = {"permission_id": "p1", "option_id": "allow_always", "resume_token": key_of(page(ada, session))}
    ada.post(f"{path_of(session)}answer/", form)
    assert not session.intents.filter(kind="answer").exists()
    address = f"/api/v1/tasks/{session.task_id}/sessions/{session.id}/permissions/"
    (shown,) = ada.get(address).json()["results"]
    assert shown["unknown_action"] is True
    assert "allow_always" not in [option["option_id"] for option in shown["options"]]


def test_unknown_action_that_the_agent_describes_later_is_an_ordinary_one(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks_with_every_option({"title": "", "tool_call_id": "c1"}))
    ingest_lines(session, {"kind": "tool.update", "tool_call_id": "c1", "title": "Push to main"})
    html = page(ada, session)
    assert "Push to main" in html
    assert SENTENCE not in html
    assert "Push to main" in as_read(session.attention.get(kind="permission")).why


@pytest.mark.parametrize(
    "wrong",
    [
        {"permission_id": ""},
        {"option_id": ""},
        {"option_id": "nonsense"},
        {"option_id": "allow "},
        {"permission_id": "p2"},
        {"resume_token": ""},
        {"resume_token": "kwt_guess"},
    ],
)
def test_invalid_permission_answer_is_refused(wrong: dict[str, str], ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks("p1"))
    form = {"permission_id": "p1", "option_id": "allow", "resume_token": key_of(page(ada, session))}
    ada.post(f"{path_of(session)}answer/", form | wrong)
    assert not session.intents.filter(kind="answer").exists()


def test_second_answer_is_refused_with_the_winning_choice(ada: Client, world: World) -> None:
    session, eve = world.running_session(), User.objects.create(username="eve")
    eve.groups.add(world.team)
    other = Client()
    other.force_login(eve)
    ingest_lines(session, asks("p1"))
    forms = [
        {"permission_id": "p1", "option_id": option, "resume_token": key_of(page(client, session))}
        for client, option in ((ada, "allow"), (other, "reject"))
    ]
    assert ada.post(f"{path_of(session)}answer/", forms[0], headers={"Accept": "application/json"}).status_code == 200
    refused = other.post(f"{path_of(session)}answer/", forms[1], headers={"Accept": "application/json"})
    assert (refused.status_code, refused.json()["code"]) == (409, "token_consumed")
    message = refused.json()["message"]
    assert "ada" in message
    assert "Allow once" in message
    assert session.intents.filter(kind="answer").count() == 1


def test_open_permission_is_closed_when_its_agent_dies(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks("p1", title="Push to main"))
    key = key_of(page(ada, session))
    ingest_lines(session, {"kind": "agent.exited", "exit_code": 9, "expected": False})
    html = page(ada, session)
    assert "The agent ended before it got an answer, so this request is closed." in html
    assert key not in html
    form = {"permission_id": "p1", "option_id": "allow", "resume_token": key}
    refused = ada.post(f"{path_of(session)}answer/", form, headers={"Accept": "application/json"})
    assert refused.json()["code"] == "token_revoked"


NO_ANSWER_IN_TIME = "Nobody answered in time"
OVERRULED = "A new prompt was sent instead of an answer"
AGENT_ENDED = "The agent ended before it got an answer"
UNANSWERABLE = "This request can no longer be answered"
REASONS = (NO_ANSWER_IN_TIME, OVERRULED, AGENT_ENDED, UNANSWERABLE)
AGENT_ENDS: dict[str, object] = {"kind": "agent.exited", "exit_code": 9, "expected": False}


@pytest.mark.parametrize(
    ("cause", "line", "reason"),
    [
        ("deadline", None, NO_ANSWER_IN_TIME),
        ("deadline", {"kind": "permission.cancelled", "permission_id": "p1", "reason": "timeout"}, NO_ANSWER_IN_TIME),
        ("deadline", AGENT_ENDS, NO_ANSWER_IN_TIME),
        ("new_message", None, OVERRULED),
        ("new_message", AGENT_ENDS, OVERRULED),
        ("database_restored", None, UNANSWERABLE),
        ("database_restored", AGENT_ENDS, AGENT_ENDED),
        ("", AGENT_ENDS, AGENT_ENDED),
    ],
)
def test_closed_request_says_what_closed_it_first(
    cause: str, line: dict[str, object] | None, reason: str, ada: Client, world: World
) -> None:
    session = world.running_session()
    ingest_lines(session, asks("p1"))
    if cause == "deadline":
        session.wait_keys.update(expires_at=timezone.now())
        assert expire_waits() == 1
    elif cause:
        with session_transaction(session.id) as transaction:
            revoke_wait_keys(transaction, cause)
    if line is not None:
        ingest_lines(session, line)
    html = page(ada, session)
    assert [each for each in REASONS if each in html] == [reason]


def test_answered_permission_leaves_a_card_with_choice_and_user(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks("p1", title="Push to <main>"))
    form = {"permission_id": "p1", "option_id": "allow", "resume_token": key_of(page(ada, session))}
    ada.post(f"{path_of(session)}answer/", form)
    ingest_lines(session, {"kind": "permission.resolved", "permission_id": "p1", "option_id": "allow"})
    message = session.messages.get(role="status")
    permission = message.payload["permission"]
    assert (permission["title"], permission["option"], permission["by"]) == ("Push to <main>", "Allow once", "ada")
    html = page(ada, session)
    card = html[html.index(f'id="m-{message.id}"') :]
    card = card[: card.index("</li>")]
    for text in ("Push to &lt;main&gt;", "Allow once", "ada", "<time"):
        assert text in card
    ingest_lines(session, {"kind": "turn.completed", "message_id": session.prompts.earliest("id").message_id})
    assert f'id="m-{message.id}"' in page(ada, session), "the message stays after the turn"


def test_prompt_during_an_open_permission_needs_confirmation(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks("p1", title="Push to main"))
    form = {"message_id": "m2", "text": "Something <else>."}
    response = ada.post(f"{path_of(session)}prompt/", form)
    assert response.status_code == 409
    assert "Something &lt;else&gt;." in response.text, "the typed text is not lost"
    refused = ada.post(f"{path_of(session)}prompt/", form, headers={"Accept": "application/json"})
    assert (refused.status_code, refused.json()["code"]) == (409, "permission_pending")
    assert not session.prompts.filter(message_id="m2").exists()
    assert session.permissions.get().state == "pending"
    assert not session.intents.filter(kind="cancel").exists()

    ada.post(f"{path_of(session)}prompt/", form | {"ends_permission": "1"})
    assert session.prompts.filter(message_id="m2").exists()
    assert session.intents.filter(kind="cancel").exists()


def test_prompt_after_an_answered_permission_needs_no_confirmation(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks("p1"))
    form = {"permission_id": "p1", "option_id": "allow", "resume_token": key_of(page(ada, session))}
    ada.post(f"{path_of(session)}answer/", form)
    ada.post(f"{path_of(session)}prompt/", {"message_id": "m2", "text": "Then the docs."})
    assert session.prompts.filter(message_id="m2").exists()


def test_permission_superseded_by_a_prompt_cannot_be_answered(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks("p1"))
    assert 'name="resume_token"' in page(ada, session)
    form = {"message_id": "m2", "text": "Something else.", "ends_permission": "1"}
    ada.post(f"{path_of(session)}prompt/", form)
    html = page(ada, session)
    assert 'name="resume_token"' not in html
    assert "A new prompt was sent instead of an answer" in html


def test_external_wait_shows_its_deadline_and_requester(ada: Client, world: World) -> None:
    session = world.resting_session()
    assert "End the wait" not in page(ada, session)
    deadline = timezone.now() + timedelta(hours=1)
    opened = open_wait(session.id, "The build of main", deadline, world.ada)
    html = page(ada, session)
    for text in ("Waiting for a result", "The build of main", f"{deadline:%Y-%m-%d %H:%M}", "End the wait"):
        assert text in html
    assert "<dd>ada</dd>" in html
    assert str(opened.resume_token) not in html

    ada.post(f"{path_of(session)}cancel/")
    assert "End the wait" not in page(ada, session)


def test_answer_for_once_comes_first_and_a_lasting_one_last(world: World, ada: Client) -> None:
    session = world.running_session()
    kinds = ("allow_always", "reject_always", "reject_once", "surprising", "allow_once")
    options = [{"option_id": kind, "name": f"Option {kind}", "kind": kind} for kind in kinds]
    ingest_lines(session, {**asks(), "options": options})
    html = ada.get(path_of(session)).text.split('id="permissions"')[1].split("</section>")[0]
    buttons = re.findall(r'<button(.*?)name="option_id" value="(.*?)"(.*?)>', html)
    ordered = ["allow_once", "reject_once", "surprising", "reject_always", "allow_always"]
    assert [value for _, value, _ in buttons] == ordered
    assert [value for before, value, after in buttons if "main" in before + after] == ["allow_once"]
    assert "Always allow this in this session, without asking." in html


CHANGE = {"type": "diff", "path": "notes.md", "oldText": "a", "newText": "b"}


@pytest.mark.parametrize(
    ("tool_call", "is_open"),
    [
        ({"tool_kind": "edit", "raw_input": {"path": "notes.md", "old": "a", "new": "b"}, "content": [CHANGE]}, False),
        ({"tool_kind": "edit", "raw_input": "and upload it", "content": [CHANGE]}, True),
        ({"tool_kind": "edit", "raw_input": {"directory": "/elsewhere"}, "content": [CHANGE]}, True),
        ({"tool_kind": "execute", "raw_input": "make test"}, False),
        ({"tool_kind": "execute", "raw_input": {"command": "make test", "cwd": "/src", "timeout": 9}}, False),
        ({"tool_kind": "execute", "raw_input": {"command": "make test", "env": {"A": "1"}}}, True),
    ],
)
def test_input_is_folded_only_if_the_card_shows_all_of_it(
    tool_call: dict[str, object], is_open: bool, world: World, ada: Client
) -> None:
    session = world.running_session()
    ingest_lines(session, asks("p1", **tool_call))
    html = ada.get(path_of(session)).text.split('id="permissions"')[1].split("</section>")[0]
    assert re.findall(r'<details class="raw"[^>]*?( open)?>', html) == [" open" if is_open else ""]
