"""Live updates of a session's page are complete, and repeating them is harmless."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from executors_app.models import ExecutorRunning
from sessions_app.models import Supervisor, TaskSession
from tests.pages.world import World, asks, first_prompt, ingest_lines, path_of

FORM_TOKEN = re.compile(r'<input type="hidden" name="csrfmiddlewaretoken"[^>]*>')
"""The token of forms sent without JavaScript; with it the page adds its own."""


def live(client: Client, session: TaskSession, after: int = 0) -> dict[str, Any]:
    answer: dict[str, Any] = client.get(f"{path_of(session)}live/", {"after": after}).json()
    return answer


def texts(answer: dict[str, Any]) -> str:
    return " ".join(item["html"] for item in answer["messages"])


def test_only_changes_are_returned(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, {"kind": "message.agent", "text": "One"})
    first = live(ada, session)
    ingest_lines(session, {"kind": "message.agent", "text": " and two"})
    second = live(ada, session, first["last_seq"])

    assert "Look at the tests." in texts(first)
    assert [item["id"] for item in second["messages"]] == [first["messages"][-1]["id"]]
    assert "One and two" in texts(second)
    assert second["messages"][0]["updated_seq"] > first["messages"][-1]["updated_seq"]
    assert live(ada, session, second["last_seq"])["messages"] == []


def test_repeated_requests_return_the_same(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, {"kind": "message.agent", "text": "One"}, asks())
    first, again = live(ada, session), live(ada, session)
    for answer in (first, again):
        answer["status"].pop("last_seen_at")
    assert first == again, "fragments contain no token or time"


def test_reading_updates_writes_nothing(ada: Client, world: World) -> None:
    session = world.resting_session(resume_token="t")
    before = TaskSession.objects.values().get()
    assert live(ada, session)["start_on_open"]
    assert TaskSession.objects.values().get() == before
    assert session.intents.filter(done_at=None).count() == 0


def test_page_and_updates_render_the_same_parts(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks())
    page = FORM_TOKEN.sub("", ada.get(path_of(session)).text)
    for name, html in live(ada, session)["parts"].items():
        assert re.search(rf'<div id="part-{name}"[^>]*>{re.escape(html)}</div>', page), name


def test_long_absence_is_returned_completely_in_pages(
    ada: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions_app.stream.views.PAGE_SIZE", 2)
    session = world.running_session()
    ingest_lines(session, *({"kind": "message.user", "text": f"note {number}"} for number in range(5)))
    received, after, more = "", 0, True
    while more:
        answer = live(ada, session, after)
        assert answer["last_seq"] > after
        received, after, more = received + texts(answer), answer["last_seq"], answer["more"]
    assert all(f"note {number}" in received for number in range(5))
    session.refresh_from_db()
    assert after == session.last_seq


@pytest.mark.parametrize("after", ["-1", "x", "", "1e3", "9" * 30])
def test_after_must_be_a_number(after: str, ada: Client, world: World) -> None:
    assert ada.get(f"{path_of(world.session())}live/", {"after": after}).status_code == 400


def gave_up(session: TaskSession) -> None:
    session.state = "FAILED"


def failed(session: TaskSession) -> None:
    session.state = "ERROR"


def manual(session: TaskSession) -> None:
    session.policy = "manual"


def stopped(session: TaskSession) -> None:
    session.desired_state, session.stopped_by_user = "stopped", True


@pytest.mark.parametrize(
    ("given", "starts"),
    [(lambda session: None, True), (gave_up, False), (failed, False), (manual, False), (stopped, False)],
    ids=["resting", "gave up", "error", "policy manual", "stopped by the user"],
)
def test_start_on_open_is_set_only_when_opening_may_start(given: Any, starts: bool, ada: Client, world: World) -> None:
    session = world.resting_session(resume_token="t")
    given(session)
    session.save()
    assert live(ada, session)["start_on_open"] is starts


def test_page_shows_reconnecting_until_the_sweep_is_over(ada: Client, world: World) -> None:
    session = world.running_session()
    Supervisor.objects.update(swept_at=None)
    answer = live(ada, session)
    assert "Reconnecting" in answer["parts"]["strip"]
    assert "The server has just started" in answer["parts"]["banner"]
    assert not answer["start_on_open"]


def test_end_of_a_turn_is_reported(ada: Client, world: World) -> None:
    session = world.running_session()
    assert "Working" in live(ada, session)["parts"]["strip"]
    ingest_lines(session, {"kind": "turn.completed", "message_id": first_prompt(session).message_id})
    assert "Your turn" in live(ada, session)["parts"]["strip"]


def test_session_without_an_execution_can_be_shown(ada: Client, world: World) -> None:
    session = world.session()
    ExecutorRunning.objects.all().delete()
    TaskSession.objects.update(agent_execution_id=None)
    assert live(ada, session)["status"]["executor_status"] == "stopped"
