"""Pages say which processes a stop would end, and whether that is still known."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from executors_app.models import AgentProfile
from sessions_app.models import BackgroundWork, TaskSession
from tests.pages.world import World, first_prompt, ingest_lines, path_of

pytestmark = pytest.mark.any_database

SINCE = "2026-01-31T12:00:00+00:00"


def with_processes(world: World, age: timedelta = timedelta()) -> TaskSession:
    session = world.running_session()
    listed = [{"command": "npm run dev", "since": SINCE, "cpu_seconds": 2.5}]
    done = {"kind": "turn.completed", "message_id": first_prompt(session).message_id}
    ingest_lines(session, done, {"kind": "agent.processes", "processes": listed, "count": 1, "cpu_seconds": 2.5})
    BackgroundWork.objects.update(reported_at=timezone.now() - age)
    return session


def test_old_report_is_shown_as_unknown_with_its_time(ada: Client, world: World) -> None:
    html = ada.get(path_of(with_processes(world, timedelta(hours=1)))).text
    assert "Processes of the agent, as last reported" in html
    assert "it is unknown which of them still run" in html
    assert "As of <time" in html
    question = "Stopping ends what still runs of 1 process that the agent had left when it last reported: npm run dev."
    assert question in html
    assert "Stopping ends 1 process" not in html
    assert "A process that it started ran when it last reported; whether it still runs is unknown." in html


def test_page_of_a_task_names_what_its_end_would_end(ada: Client, world: World) -> None:
    session = with_processes(world)
    path = f"/tasks/{session.task_id}/"
    assert "Stopping ends 1 process that the agent has left running: npm run dev." in ada.get(path).text
    BackgroundWork.objects.update(reported_at=timezone.now() - timedelta(hours=1))
    assert "Stopping ends what still runs of 1 process" in ada.get(path).text
    session.executions.update(status="stopped")
    assert "Stopping ends" not in ada.get(path).text


def test_policy_is_chosen_on_the_page_and_shown(ada: Client, world: World) -> None:
    session = with_processes(world)
    ada.post(f"{path_of(session)}background/", {"background": "end"})
    html = ada.get(path_of(session)).text
    assert "They end when the session falls asleep." in html
    assert "this ends when the session falls asleep or the agent is stopped" in html
    assert BackgroundWork.objects.get(session=session).policy == "end"


def test_page_says_where_the_policy_is_set(ada: Client, world: World) -> None:
    session = with_processes(world)
    path = path_of(session)
    assert "They keep the session awake. Default for this installation." in ada.get(path).text
    AgentProfile.objects.update(background_policy="end")
    html = ada.get(path).text
    assert "They end when the session falls asleep. Default of the agent profile." in html
    assert "Default of the agent profile: end them and let the session sleep</option>" in html
    assert "Processes left running: end them and let the session sleep" in ada.get("/agents/").text
    ada.post(f"{path}background/", {"background": "keep"})
    assert "They keep the session awake. Chosen for this session." in ada.get(path).text
