"""Bulk resume and stop, on the page and in the API: one failure does not affect the others."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.test import Client

from sessions_app.accounts.models import TeamRole
from sessions_app.models import TaskSession
from sessions_app.sessions.services import intents
from tests.pages.world import World, path_of


def open_orders(session: TaskSession) -> list[str]:
    return list(session.intents.filter(done_at=None).values_list("kind", flat=True))


def ids(*sessions: TaskSession) -> list[str]:
    return [str(one.id) for one in sessions]


def ask_api(client: Client, action: Any, sessions: Any) -> Any:
    body = {"action": action, "sessions": sessions}
    return client.post("/api/v1/sessions/bulk/", body, content_type="application/json")


def test_selected_sessions_are_stopped(ada: Client, world: World) -> None:
    sessions = [world.running_session() for _ in range(2)]
    answer = ada.post("/sessions/bulk/?q=x", {"action": "stop", "session": ids(*sessions)})
    assert "2 sessions were asked to stop" in answer.text
    assert 'href="/?q=x"' in answer.text, "the link back keeps the search"
    assert [open_orders(one) for one in sessions] == [["stop"], ["stop"]]


@pytest.mark.parametrize("count", [1, 2])
def test_stopping_many_sessions_names_the_processes_that_it_ends(count: int, ada: Client, world: World) -> None:
    session, other = world.running_session(), world.running_session()
    known = {"launch_id": session.launch_id, "processes": [], "count": count}
    TaskSession.objects.filter(id=session.id).update(metadata={"background_processes": known})
    assert f'value="{session.id}" data-processes="{count}"' in ada.get("/").text
    html = ada.post("/sessions/bulk/", {"action": "stop", "session": ids(session, other)}).text
    assert html.count("that the agent has left running") == 1
    assert f"This ends {count} process{'es' if count > 1 else ''} that" in html


def test_one_failing_session_does_not_stop_the_others(
    ada: Client, bob: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, over, broken, last = (world.resting_session(resume_token="t") for _ in range(4))
    TaskSession.objects.filter(id=over.id).update(state="COMPLETED")
    resume = intents.request_resume

    def resume_but_one(session_id: uuid.UUID, by: Any) -> None:
        if session_id == broken.id:
            raise RuntimeError("a bug")
        resume(session_id, by)

    monkeypatch.setattr(intents, "BULK_ACTIONS", {"resume": resume_but_one})
    nowhere = str(uuid.uuid4())
    wanted = [*ids(good, over, broken), nowhere, *ids(last)]
    results = ask_api(ada, "resume", wanted).json()["results"]
    assert [one["session_id"] for one in results] == wanted
    assert [one["code"] for one in results] == ["", "terminal_state", "internal_error", "not_found", ""]
    assert [open_orders(one) for one in (good, over, broken, last)] == [["start"], [], [], ["start"]]
    html = ada.post("/sessions/bulk/", {"action": "resume", "session": wanted}).text
    assert "2 sessions were asked to resume; 3 were not" in html
    assert "The session has ended and cannot be restarted." in html
    assert html.index("The session has ended and cannot be restarted.") < html.index("Done: asked to resume"), (
        "failures come first"
    )
    assert {one["code"] for one in ask_api(bob, "resume", ids(good)).json()["results"]} == {"not_found"}


def test_viewer_cannot_run_bulk_actions(ada: Client, world: World) -> None:
    session = world.running_session()
    TeamRole.objects.create(team=world.team, user=world.ada, role=TeamRole.Role.VIEWER)
    assert ask_api(ada, "stop", ids(session)).status_code == 403
    assert ada.post("/sessions/bulk/", {"action": "stop", "session": ids(session)}).status_code == 403
    assert open_orders(session) == []
    assert path_of(session) in ada.get("/").text
    assert 'name="session"' not in ada.get("/").text


@pytest.mark.parametrize(
    ("action", "sessions"),
    [("explode", ["{id}"]), ("stop", []), ("stop", ["nonsense"]), ("stop", ["{many}"]), ("", ["{id}"])],
)
def test_invalid_bulk_request_changes_nothing_and_says_why(
    action: str, sessions: list[str], ada: Client, world: World
) -> None:
    session = world.running_session()
    if sessions == ["{many}"]:
        sessions = [str(uuid.uuid4()) for _ in range(intents.BULK_LIMIT + 1)]
    given = [str(session.id) if one == "{id}" else one for one in sessions]
    assert ask_api(ada, action, given).status_code == 400
    answer = ada.post("/sessions/bulk/", {"action": action, "session": given})
    assert answer.status_code == 422
    assert "Nothing was changed." in answer.text
    assert open_orders(session) == []


def test_duplicate_session_ids_make_one_request(ada: Client, world: World) -> None:
    session = world.resting_session(resume_token="t")
    assert len(ask_api(ada, "resume", ids(session, session)).json()["results"]) == 1
    assert open_orders(session) == ["start"]
