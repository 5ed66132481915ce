"""Permission requests and external waits on a session's page, with their keys."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from sessions_app.models import TaskSession
from sessions_app.services.waits import open_wait
from tests.pages.world import World, asks, ingest_lines, path_of


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
    assert refused.json()["message"] == "ada has already answered this: Allow once."
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


def test_answered_permission_leaves_a_card_with_choice_and_user(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks("p1", title="Push to <main>"))
    form = {"permission_id": "p1", "option_id": "allow", "resume_token": key_of(page(ada, session))}
    ada.post(f"{path_of(session)}answer/", form)
    ingest_lines(session, {"kind": "permission.resolved", "permission_id": "p1", "option_id": "allow"})
    message = session.messages.get(role="status")
    told = message.payload["permission"]
    assert (told["title"], told["option"], told["by"]) == ("Push to <main>", "Allow once", "ada")
    html = page(ada, session)
    card = html[html.index(f'id="m-{message.id}"') :]
    card = card[: card.index("</li>")]
    for said in ("Push to &lt;main&gt;", "Allow once", "ada", "<time"):
        assert said in card
    ingest_lines(session, {"kind": "turn.completed", "message_id": session.prompts.earliest("id").message_id})
    assert f'id="m-{message.id}"' in page(ada, session), "the message stays after the turn"


def test_prompt_during_an_open_permission_needs_confirmation(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks("p1", title="Push to main"))
    form = {"message_id": "m2", "text": "Something <else>."}
    asked = ada.post(f"{path_of(session)}prompt/", form)
    assert asked.status_code == 409
    assert "The agent is waiting for your answer" in asked.text
    assert "Something &lt;else&gt;." in asked.text, "the typed text is not lost"
    told = ada.post(f"{path_of(session)}prompt/", form, headers={"Accept": "application/json"})
    assert (told.status_code, told.json()["code"]) == (409, "permission_pending")
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
    assert "Not waiting for an external result." in page(ada, session)
    deadline = timezone.now() + timedelta(hours=1)
    opened = open_wait(session.id, "The build of main", deadline, world.ada)
    html = page(ada, session)
    for told in ("Waiting for a result", "The build of main", f"{deadline:%Y-%m-%d %H:%M}", "End the wait"):
        assert told in html
    assert "<dd>ada</dd>" in html
    assert str(opened.resume_token) not in html

    ada.post(f"{path_of(session)}cancel/")
    assert "Not waiting for an external result." in page(ada, session)
