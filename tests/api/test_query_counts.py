"""The number of queries for a response does not grow with the number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from executors_app.models import AgentProfile, ExecutorRunning
from sessions_app.board.services.tasks import create_session, create_task
from sessions_app.models import ContinuityReceipt, Intent, Prompt, Turn
from tests.api.world import World, message, prompt, say


def more_tasks(world: World, count: int) -> None:
    for _ in range(count):
        task = create_task(world.member, {"title": "x", "team": world.team, "repository": world.repository})
        create_session(world.member, task, world.profile, world.executor)


def more_sessions(world: World, count: int) -> None:
    for _ in range(count):
        create_session(world.member, world.task, world.profile, world.executor)


def more_of_a_session(world: World, count: int) -> None:
    first = world.session.messages.count() + 1
    say(world.session, times=count)
    for number in range(count):
        message(world.session, first + number, "a", "b")
        old = prompt(world.session, "dismissed")
        old.resent_as = prompt(world.session, "held")
        old.save()
        Turn.objects.create(session=world.session, message_id="m", state="completed", started_at=timezone.now())
        ContinuityReceipt.objects.create(session=world.session, kind="resumed")


def more_profiles(world: World, count: int) -> None:
    for number in range(count):
        AgentProfile.objects.create(name=str(number), agent_type="demo", team=world.team)


COSTS: list[tuple[str, Callable[[World, int], None], int]] = [
    ("/api/v1/tasks/", more_tasks, 6),
    ("/api/v1/tasks/{task}/sessions/", more_sessions, 3),
    ("/api/v1/tasks/{task}/sessions/{session}/status/", more_of_a_session, 14),
    ("/api/v1/tasks/{task}/sessions/{session}/events/", more_of_a_session, 3),
    ("/api/v1/tasks/{task}/sessions/{session}/messages/", more_of_a_session, 4),
    ("/api/v1/tasks/{task}/sessions/{session}/prompts/", more_of_a_session, 3),
    ("/api/v1/tasks/{task}/sessions/{session}/runs/", more_of_a_session, 3),
    ("/api/v1/tasks/{task}/sessions/{session}/receipts/", more_of_a_session, 3),
    ("/api/v1/agent-profiles/", more_profiles, 2),
    ("/api/v1/executors/running/?status=stopped", more_tasks, 2),
]


@pytest.mark.parametrize(("route", "more", "queries"), COSTS, ids=[cost[0].split("/")[-2] for cost in COSTS])
def test_one_row_and_twenty_rows_cost_the_same(
    world: World, api: APIClient, django_assert_num_queries: Any, route: str, more: Any, queries: int
) -> None:
    url = route.format(task=world.task.id, session=world.session.id)
    more(world, 1)
    with django_assert_num_queries(queries):
        assert api.get(url).status_code == 200
    more(world, 19)
    with django_assert_num_queries(queries):
        assert api.get(url).status_code == 200


@pytest.mark.parametrize(("status", "asked"), [("ready", 1), ("stopped", 0)])
def test_status_asks_for_supervisors_once_and_only_while_a_session_needs_one(
    world: World, api: APIClient, status: str, asked: int
) -> None:
    Intent.objects.update(done_at=timezone.now())
    Prompt.objects.all().delete()
    world.mark_running()
    ExecutorRunning.objects.update(status=status)
    with CaptureQueriesContext(connection) as captured:
        assert api.get(world.url("status/")).json()["recovering"] is bool(asked)
    assert sum("supervisors" in query["sql"] for query in captured.captured_queries) == asked
