"""The pages say what a resume costs before it, and what it has cost afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.models import Supervisor, TaskSession
from tests.pages.world import World, path_of

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]
CONTEXT = {"context_used": 62_310, "context_size": 200_000}


def asleep(session: TaskSession) -> None:
    ExecutorRunning.objects.update(status_reason="idle")


def stopped(session: TaskSession) -> None:
    TaskSession.objects.update(desired_state="stopped", stopped_by_user=True)


def dead(session: TaskSession) -> None:
    ExecutorRunning.objects.update(status="error")
    TaskSession.objects.update(state="ERROR", error_code="agent_exited")


@pytest.mark.parametrize("given", [asleep, stopped, dead])
def test_session_page_says_what_a_resume_costs(
    given: Callable[[TaskSession], None], ada: Client, bob: Client, world: World
) -> None:
    session = world.resting_session(resume_token="t")
    session.runs.update(usage=CONTEXT)
    given(session)
    html = ada.get(path_of(session)).text
    assert html.count('id="resume-cost"') == 1
    cost = html[html.index('id="resume-cost"') :].partition("</p>")[0]
    assert "62,310 tokens when the agent last reported its size" in cost
    assert "still has in its cache is unknown; the last turn ended at <time" in cost
    assert bob.get(path_of(session)).status_code == 404


def test_size_that_was_not_reported_is_shown_as_unknown(ada: Client, world: World) -> None:
    session = world.resting_session(resume_token="t")
    html = ada.get(path_of(session)).text
    assert "How many tokens that costs is unknown: the agent has reported no size." in html


def test_running_agent_has_no_resume_to_pay(ada: Client, world: World) -> None:
    session = world.running_session()
    session.runs.update(usage=CONTEXT)
    ExecutorRunning.objects.update(resume_token="t")
    assert 'id="resume-cost"' not in ada.get(path_of(session)).text


@pytest.mark.parametrize(
    ("usage", "says"),
    [
        ({"input_tokens": 9, "cached_tokens": 61_000}, "9 input tokens, 61,000 tokens read from a cache"),
        (None, "unknown: the agent has reported no tokens"),
    ],
)
def test_receipt_links_to_the_turn_and_says_what_it_cost(usage: Any, says: str, ada: Client, world: World) -> None:
    session = world.resting_session()
    session.receipts.create(kind="loaded", verified="replay", after_seq=0)
    session.runs.update(first_seq=3, last_seq=9, usage=usage)
    html = ada.get(path_of(session)).text
    assert f"First turn after it, as the agent reports it: {says}." in html
    assert f'href="{path_of(session)}?before=9#talk">Show the turn</a>' in html
    [shown] = ada.get(f"/api/v1{path_of(session)}receipts/").json()["results"]
    assert shown["first_turn"]["usage"] == usage
    assert shown["first_turn"]["id"] == str(session.runs.get().id)


@pytest.fixture
def data(settings: LazySettings, tmp_path: Path) -> Path:
    settings.KANDEV_DATA_DIR = str(tmp_path)
    return tmp_path


def test_restart_page_says_what_resumes_would_cost_and_have_cost(staff: Client, world: World, data: Path) -> None:
    session = world.running_session()
    ExecutorRunning.objects.update(resume_token="t")
    session.runs.update(usage=CONTEXT)
    assert "62,310 tokens when the agent last reported its size" in staff.get("/restart/").text
    killed = timezone.now() - timedelta(seconds=5)
    done = {"by": "ada", "killed_at": killed.isoformat(), "killed": ["web"]}
    (data / "restarted.json").write_text(json.dumps(done))
    at = killed + timedelta(seconds=2)
    Supervisor.objects.create(boot_id="new", host_id="h", started_at=at, beat_at=timezone.now(), swept_at=at)
    session.receipts.create(kind="loaded", verified="replay", after_seq=0)
    session.runs.update(first_seq=3)
    state = staff.get("/restart/live/").json()["parts"]["restart"]
    assert "First turn after it, as the agent reports it: unknown: the agent has reported no tokens" in state


def test_restart_page_reads_the_costs_of_all_agents_together(staff: Client, world: World, data: Path) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            page = staff.get("/restart/").text
        assert "What a resume would cost" in page
        return len(queries)

    world.running_session()
    ExecutorRunning.objects.update(resume_token="t")
    before = count()
    for _ in range(5):
        world.running_session()
    ExecutorRunning.objects.update(resume_token="t")
    assert count() == before
