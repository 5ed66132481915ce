"""A session's page claims only what is known."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.models import Supervisor, TaskSession
from tests.pages.world import World, path_of
from tests.sessions.pages.test_sessions import page

pytestmark = pytest.mark.any_database

SILENCE = "No messages yet"


def test_silence_is_mentioned_only_where_nothing_was_sent(ada: Client, world: World) -> None:
    assert SILENCE in page(ada, world.session(prompt=""))
    queued = world.session()
    assert SILENCE not in page(ada, queued), "the first prompt is still queued"
    parts = ada.get(f"{path_of(queued)}live/").json()["parts"]
    assert SILENCE not in parts["ledger"]
    assert SILENCE not in page(ada, world.running_session())


def pills(html: str) -> list[str]:
    strip = html[html.index('<dl class="strip"') : html.index("</dl>")]
    return re.findall(r'<span class="pill \w+">([^<]+)</span>', strip)[:3]


def test_pills_show_unknown_when_the_state_is_unknown(ada: Client, world: World) -> None:
    session = world.running_session()
    assert pills(page(ada, session)) == ["Working", "Ready", "Running"]
    TaskSession.objects.update(state="ERROR", error_code="unreachable")
    ExecutorRunning.objects.update(status="error", error_code="unreachable")
    assert pills(page(ada, session)) == ["Unknown"] * 3
    for path in ("/", f"/tasks/{session.task_id}/"):
        assert '<span class="pill ask">Unknown</span>' in ada.get(path).text
    TaskSession.objects.update(state="RUNNING", error_code="")
    ExecutorRunning.objects.update(status="ready", error_code="")
    Supervisor.objects.all().delete()
    assert pills(page(ada, session)) == ["Reconnecting"] * 3
    for path in ("/", f"/tasks/{session.task_id}/", "/executors/"):
        assert '<span class="pill busy">Reconnecting</span>' in ada.get(path).text, path


def test_workspace_without_an_agent_is_not_your_turn(ada: Client, world: World) -> None:
    session = world.session(prompt="")
    session.intents.all().delete()
    TaskSession.objects.update(state="WAITING_FOR_INPUT", has_agent=False)
    assert pills(page(ada, session))[0] == "Workspace"
    for path in ("/", f"/tasks/{session.task_id}/"):
        shown = ada.get(path).text
        assert '<span class="pill off">Workspace</span>' in shown, path
        assert "Your turn</span>" not in shown, path


def test_work_not_yet_transferred_is_reported(ada: Client, world: World) -> None:
    session = world.session()
    assert "not yet transferred" not in page(ada, session)
    ExecutorRunning.objects.update(
        runtime="remote_docker",
        snapshot_announced="c",
        snapshot_due_since=timezone.now(),
        snapshot_error_code="runtime_unavailable",
        snapshot_error="The <engine> does not answer.",
    )
    shown = page(ada, session)
    assert "Latest snapshot not yet transferred" in shown
    assert "Last error: The &lt;engine&gt; does not answer." in shown
