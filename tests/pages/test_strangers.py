"""Every page hides other teams' data and has no foreign inline code or external sources."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256

import pytest
from django.conf import settings
from django.test import Client

from sessions_app.models import Intent, Prompt
from tests.pages.inline import KNOWN, foreign_inline
from tests.pages.world import World, asks, first_prompt, ingest_lines, make_sweep, path_of
from tests.usage.ledger import used

ACTIONS = ["prompt", "resume", "cancel", "stop", "close", "answer", "resend", "continue", "dismiss", "withdraw"]
OUTSIDE = re.compile(r"(?:src|href|action|formaction)=\"(?:[a-z]+:)?//", re.IGNORECASE)


@pytest.mark.parametrize("page", ["", "live/"])
def test_session_of_another_team_returns_404(page: str, bob: Client, ada: Client, world: World) -> None:
    path = path_of(world.session()) + page
    assert ada.get(path).status_code == 200
    assert bob.get(path).status_code == 404


@pytest.mark.parametrize("page", ["", "live/"])
def test_task_of_another_team_returns_404(page: str, bob: Client, ada: Client, world: World) -> None:
    path = f"/tasks/{world.task().id}/{page}"
    assert ada.get(path).status_code == 200
    assert bob.get(path).status_code == 404


@pytest.mark.parametrize("action", ACTIONS)
def test_session_of_another_team_cannot_be_changed(action: str, bob: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks())
    before = (Intent.objects.count(), Prompt.objects.count())
    form = {"message_id": first_prompt(session).message_id, "text": "x", "answer": "p1 allow", "as": "completed"}
    assert bob.post(f"{path_of(session)}{action}/", form).status_code == 404
    assert (Intent.objects.count(), Prompt.objects.count()) == before


@pytest.mark.parametrize("change", ["done", "cancel", "archive", "reopen", "unarchive"])
def test_task_of_another_team_cannot_be_changed(change: str, bob: Client, world: World) -> None:
    task = world.task()
    assert bob.post(f"/tasks/{task.id}/{change}/").status_code == 404
    task.refresh_from_db()
    assert (task.state, task.archived_at) == ("TODO", None)


def test_session_is_found_only_under_its_own_task(ada: Client, world: World) -> None:
    session, other = world.session(), world.task()
    assert ada.get(f"/tasks/{other.id}/sessions/{session.id}/").status_code == 404


def test_board_shows_only_tasks_of_own_teams(ada: Client, bob: Client, world: World) -> None:
    world.task("Mend the engine")
    assert "Mend the engine" in ada.get("/").text
    assert "Mend the engine" not in bob.get("/").text
    assert "Mend the engine" not in bob.get("/live/").json()["parts"]["board"]


@pytest.mark.parametrize("action", ["stop", "prompt"])
def test_cross_site_forms_are_refused(action: str, world: World) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(world.ada)
    answer = strict.post(f"{path_of(world.session())}{action}/", {"text": "x", "message_id": "m"})
    assert answer.status_code == 403
    assert "Nothing was changed" in answer.text


def full_session(world: World) -> str:
    session = world.running_session()
    tool = {"kind": "tool.call", "tool_call_id": "t", "title": "Look", "status": "completed"}
    ingest_lines(session, {"kind": "message.agent", "text": "**Hello** <b onclick=x>you</b>"}, tool, asks())
    session.prompts.create(message_id="held", text="held", state="held")
    session.prompts.create(message_id="queued", text="queued")
    return path_of(session)


PAGES: dict[str, Callable[[World], str]] = {
    "board": lambda world: "/" if world.task() else "",
    "empty board": lambda world: "/",
    "task": lambda world: f"/tasks/{world.task().id}/",
    "session": full_session,
    "executors": lambda world: "/executors/" if world.running_session() else "",
    "sweeps": lambda world: "/sweeps/" if make_sweep(failed=1) else "",
    "sweep": lambda world: f"/sweeps/{make_sweep(world.session(), loaded=1).id}/",
    "usage": lambda world: "/usage/" if used(world.task(), tokens=7) else "",
    "not found": lambda world: "/nowhere/",
    "login": lambda world: "/login/?out",
    "used link": lambda world: "/login/used/",
}


@pytest.mark.parametrize("name", PAGES)
def test_page_has_one_known_inline_script_and_no_external_sources(name: str, ada: Client, world: World) -> None:
    path = PAGES[name](world)
    answer = (Client() if "login" in path else ada).get(path)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    digest = b64encode(sha256(settings.KANDEV_INLINE_SCRIPT.read_bytes()).digest()).decode()
    assert f"script-src 'self' 'sha256-{digest}'" in policy
    assert answer.text.count(KNOWN) == 1
    assert not foreign_inline(answer.text.replace("&lt;b onclick=x&gt;", ""))
    assert not OUTSIDE.findall(answer.text)
    assert '<main id="main"' in answer.text
    assert len(re.findall(r"<h1[ >]", answer.text)) == 1


def test_server_error_has_a_page(ada: Client, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("inner workings")

    monkeypatch.setattr("sessions_app.board.views.board.columns_context", fail)
    ada.raise_request_exception = False
    answer = ada.get("/")
    assert answer.status_code == 500
    assert "Your agents are not affected" in answer.text
    assert "inner workings" not in answer.text
