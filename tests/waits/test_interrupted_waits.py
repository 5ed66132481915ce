"""Waits that end without an answer: users choose what to do, and the next prompt tells the agent of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.utils import timezone

from sessions_app.kernel.services.errors import Conflict, Invalid, TerminalState
from sessions_app.mcp_server.reading import view_session
from sessions_app.models import AttentionItem, Prompt, Supervisor, TaskSession, Turn, WaitKey
from sessions_app.notifications.delivery import render_email, webhook_payload
from sessions_app.prompts import services as prompts
from sessions_app.prompts.delivery import claim_next_prompt
from sessions_app.sessions.services.status import session_status
from sessions_app.waits import services as waits
from sessions_app.waits.expiry import expire_waits
from sessions_app.waits.rules.wait_keys import WaitKind
from tests.api.world import client_of
from tests.attention.reading import as_read
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import MINE, change, fresh, make_user, open_orders, prompt_states, running_session

pytestmark = pytest.mark.django_db
KIND = "wait_interrupted"


def interrupted(kind: WaitKind = WaitKind.EXTERNAL, reason: str = "The build of main", **fields: Any) -> TaskSession:
    """Return a session whose wait of an hour ended without an answer."""
    session = running_session(**fields)
    waits.open_wait(session.id, reason, timezone.now() + timedelta(hours=1), make_user(), kind)
    past = timezone.now() - timedelta(seconds=1)
    WaitKey.objects.filter(session=session).update(expires_at=past)
    Turn.objects.filter(session=session).update(deadline_at=past, started_at=past - timedelta(hours=1))
    assert expire_waits() == 1
    return fresh(session)


def wait_of(session: TaskSession) -> Any:
    return session_status(fresh(session))["interrupted_wait"]


def items(session: TaskSession) -> list[AttentionItem]:
    return list(AttentionItem.objects.filter(session=session, kind=KIND, resolved_at=None))


def sent(session: TaskSession) -> str:
    """Return the text that the agent gets with the next prompt."""
    sending = claim_next_prompt(session.id, MINE, "epoch-1", frozenset())
    assert sending is not None
    return sending.text


def test_users_are_notified_by_inbox_mail_and_webhook() -> None:
    session = interrupted()
    (item,) = items(session)
    wording = "Nobody answered in time. It waited for: The build of main"
    assert (item.what, as_read(item).why) == ("A wait ended without an answer", wording)
    assert wording in render_email([item])["text"]
    assert webhook_payload(item, "1")["item"]["kind"] == KIND


def test_status_names_the_missing_answer() -> None:
    session = interrupted()
    wait, run = wait_of(session), session.runs.get()
    assert (wait["kind"], wait["reason"], wait["id"]) == ("external", "The build of main", run.wait_id)
    assert session_status(session)["derived_status"] == "interrupted_waiting"


def test_status_is_read_in_a_transaction_without_searching_the_reason() -> None:
    session, now = interrupted(reason="The build of main"), timezone.now()
    Supervisor.objects.create(boot_id="b", host_id="h", started_at=now, beat_at=now, swept_at=now)
    with transaction.atomic():
        view = view_session(session, make_user("reader"))
    assert "“The build of main”" in view.situation.text


def test_next_prompt_mentions_the_interrupted_wait_once() -> None:
    session = interrupted(WaitKind.TOOL_RESULT, "The scan")
    prompts.queue_prompt(session.id, "p1", "What now?", make_user())
    text = sent(session)
    assert text.startswith("[Note by the system: This session waited until ")
    assert "for the result of a tool: “The scan”. Nobody answered, so the wait was ended." in text
    assert text.endswith("\n\nWhat now?")
    journal = Journal()
    ingest(session, [*journal.turn_begins("p1"), journal.completes("p1")])
    prompts.queue_prompt(session.id, "p2", "And now?", make_user())
    assert sent(session) == "And now?"


def test_undelivered_prompt_mentions_it_again() -> None:
    session = interrupted()
    prompts.queue_prompt(session.id, "p1", "What now?", make_user())
    first = sent(session)
    change(Prompt.objects.get(), state="queued")
    assert sent(session) == first


def test_restarted_wait_has_the_same_length_and_a_new_key() -> None:
    session = interrupted()
    again = waits.restart_wait(session.id, wait_of(session)["id"], make_user())
    assert again.deadline is not None
    assert 3590 < (again.deadline - timezone.now()).total_seconds() <= 3600
    status = session_status(fresh(session))
    assert (status["derived_status"], status["wait"]["reason"]) == ("waiting", "The build of main")
    assert (status["interrupted_wait"], items(session)) == (None, [])
    waits.resume_wait(str(again.resume_token), "It has passed.", "1")
    assert sent(session) == "It has passed.", "the prompt is the answer alone"


def test_continuing_tells_the_agent_to_continue_without_the_answer() -> None:
    session = interrupted()
    wait_id = wait_of(session)["id"]
    first, second = [waits.continue_without_answer(session.id, wait_id, make_user()) for _ in range(2)]
    assert first == second
    assert (items(session), prompt_states(session)) == ([], {f"wait:{wait_id}:continue": "queued"})
    text = sent(session)
    assert text.startswith("This session waited until ")
    assert "Continue without it." in text
    assert text.count("Nobody answered") == 1


def test_withdrawn_continue_offers_the_choice_again() -> None:
    session = interrupted()
    wait_id = wait_of(session)["id"]
    first = waits.continue_without_answer(session.id, wait_id, make_user())
    prompts.withdraw_prompt(session.id, first.message_id)
    assert wait_of(session)["id"] == wait_id
    second = waits.continue_without_answer(session.id, wait_id, make_user())
    assert second.message_id == f"{first.message_id}:1"
    assert sent(session).count("Nobody answered") == 1
    journal = Journal()
    ingest(session, [*journal.turn_begins(second.message_id), journal.completes(second.message_id)])
    prompts.queue_prompt(session.id, "p2", "And now?", make_user())
    assert sent(session) == "And now?", "the agent is told only once"


def test_continuing_starts_an_agent_that_has_exited() -> None:
    session = interrupted()
    change(session, launch_id="")
    waits.continue_without_answer(session.id, wait_of(session)["id"], make_user())
    assert [kind for kind, _ in open_orders(session)] == ["start"]


@pytest.mark.parametrize("act", [waits.restart_wait, waits.continue_without_answer])
def test_session_that_has_continued_offers_neither(act: Any) -> None:
    session = interrupted()
    wait_id, journal = wait_of(session)["id"], Journal()
    Prompt.objects.create(session=session, message_id="p1", text="Go on", state="sending")
    ingest(session, [{**line, "ts": timezone.now().timestamp()} for line in journal.turn_begins("p1")])
    assert (wait_of(session), items(session)) == (None, [])
    with pytest.raises(Conflict):
        act(session.id, wait_id, make_user())


@pytest.mark.parametrize("act", [waits.restart_wait, waits.continue_without_answer])
def test_ended_session_offers_neither(act: Any) -> None:
    session = interrupted()
    wait_id = wait_of(session)["id"]
    change(session, state="COMPLETED")
    with pytest.raises(TerminalState):
        act(session.id, wait_id, make_user())


def test_past_deadline_is_refused() -> None:
    session = interrupted()
    with pytest.raises(Invalid):
        waits.restart_wait(session.id, wait_of(session)["id"], make_user(), timezone.now() - timedelta(hours=1))


def test_api_offers_both() -> None:
    session, other = interrupted(), interrupted()
    api = client_of(make_user())
    urls = [f"/api/v1/tasks/{one.task_id}/sessions/{one.id}/waits/{wait_of(one)['id']}/" for one in (session, other)]
    begun = api.post(f"{urls[0]}again/", {"deadline": "2099-01-01T00:00:00Z"}, format="json")
    assert (begun.status_code, begun["Cache-Control"]) == (201, "no-store")
    assert begun.json()["deadline"] == "2099-01-01T00:00:00Z"
    assert begun.json()["resume_token"].startswith("kwt_")
    went_on = api.post(f"{urls[1]}continue/")
    assert (went_on.status_code, went_on.json()["kind"]) == (202, "wait")
    assert api.post(f"{urls[0]}continue/").status_code == 409


def test_page_offers_both(client: Client) -> None:
    session = interrupted()
    user = make_user()
    client.force_login(user)
    path = f"/tasks/{session.task_id}/sessions/{session.id}/"
    now = timezone.now()
    Supervisor.objects.create(boot_id="b", host_id="h", started_at=now, beat_at=now, swept_at=now)
    html = client.get(path).content.decode()
    assert "The wait for “The build of main” ended without an answer at" in html
    wait_id = wait_of(session)["id"]
    for action, word in (("waits/again/", "Wait again"), ("continue-wait/", "Continue")):
        assert f'formaction="{path}{action}" name="wait_id" value="{wait_id}">{word}<' in html
    shown = client.post(f"{path}waits/again/", {"wait_id": wait_id})
    assert (shown.status_code, "kwt_" in shown.text) == (200, True)
