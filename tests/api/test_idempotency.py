"""Repeating a request with the same idempotency key creates nothing twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connections
from rest_framework.test import APIClient

from sessions_app.models import Intent, Prompt, Task, TaskSession
from tests.api.world import World, client_of, make_world

TASKS = "/api/v1/tasks/"


def sessions_of(world: World) -> str:
    return f"{TASKS}{world.task.id}/sessions/"


def new_session(world: World, **more: Any) -> dict[str, Any]:
    request = {"agent_profile": str(world.profile.id), "executor": str(world.executor.id), "prompt": "Go"}
    return {**request, "idempotency_key": "k 1", **more}


def new_task(world: World, **more: Any) -> dict[str, Any]:
    return {"title": "Dig", "repository": str(world.repository.id), "idempotency_key": "k 1", **more}


def test_repeated_session_request_returns_the_same_session(world: World, api: APIClient) -> None:
    first = api.post(sessions_of(world), new_session(world), format="json")
    again = api.post(sessions_of(world), new_session(world, desired_state="running", policy=""), format="json")
    assert (first.status_code, again.status_code) == (201, 400), "an empty policy equals no policy"
    again = api.post(sessions_of(world), new_session(world, desired_state="running"), format="json")
    assert (again.status_code, again.json()) == (200, first.json())
    made = TaskSession.objects.exclude(id=world.session.id)
    assert [str(row.id) for row in made] == [first.json()["id"]]
    assert (Prompt.objects.filter(session__in=made).count(), Intent.objects.filter(session__in=made).count()) == (1, 1)


def test_repeated_request_succeeds_for_a_colleague_after_the_task_ended(world: World, api: APIClient) -> None:
    first = api.post(sessions_of(world), new_session(world), format="json").json()
    api.post(f"{TASKS}{world.task.id}/done/")
    again = client_of(world.staff).post(sessions_of(world), new_session(world), format="json")
    assert (again.status_code, again.json()["id"]) == (200, first["id"])


@pytest.mark.parametrize(
    "change", [{"prompt": "Stop"}, {"prompt": ""}, {"policy": "manual"}, {"desired_state": "stopped"}]
)
def test_different_session_request_with_the_same_key_is_refused(
    world: World, api: APIClient, change: dict[str, Any]
) -> None:
    first = api.post(sessions_of(world), new_session(world), format="json").json()
    refused = api.post(sessions_of(world), new_session(world, **change), format="json")
    assert (refused.status_code, refused.json()["code"]) == (409, "idempotency_key_reused")
    assert refused.json()["details"] == {"id": first["id"]}


def test_requests_without_a_key_or_on_another_task_create_new_sessions(world: World, api: APIClient) -> None:
    other = api.post(TASKS, new_task(world), format="json").json()["id"]
    for path, key in ((sessions_of(world), ""), (sessions_of(world), ""), (sessions_of(world), "k 1")):
        assert api.post(path, new_session(world, idempotency_key=key), format="json").status_code == 201
    assert api.post(f"{TASKS}{other}/sessions/", new_session(world), format="json").status_code == 201
    assert TaskSession.objects.count() == 5


@pytest.mark.parametrize("key", ["x" * 129, "a\nb", 1, None, {}])
def test_invalid_key_is_named(world: World, api: APIClient, key: Any) -> None:
    for path, body in ((TASKS, new_task(world)), (sessions_of(world), new_session(world))):
        refused = api.post(path, {**body, "idempotency_key": key}, format="json")
        assert (refused.status_code, list(refused.json()["details"])) == (400, ["idempotency_key"])


def test_repeated_task_request_returns_the_same_task(world: World, api: APIClient) -> None:
    first = api.post(TASKS, new_task(world), format="json")
    again = api.post(TASKS, new_task(world, team=world.team.name, description=""), format="json")
    assert (first.status_code, again.status_code, again.json()) == (201, 200, first.json())
    refused = api.post(TASKS, new_task(world, title="Dig deeper"), format="json")
    assert (refused.status_code, refused.json()["code"]) == (409, "idempotency_key_reused")
    assert Task.objects.filter(title__startswith="Dig").count() == 1


def test_key_of_one_team_is_independent_of_another(world: World, api: APIClient) -> None:
    api.post(TASKS, new_task(world), format="json")
    theirs = client_of(world.stranger).post(TASKS, {"title": "Dig", "idempotency_key": "k 1"}, format="json")
    assert theirs.status_code == 201
    world.member.groups.add(second := Group.objects.create(name="second"))
    ours = api.post(TASKS, {"title": "Dig", "team": second.id, "idempotency_key": "k 1"}, format="json")
    assert ours.status_code == 201


@pytest.mark.django_db(transaction=True)
def test_concurrent_requests_create_one_session_and_all_return_it() -> None:
    world = make_world()
    barrier = Barrier(6)

    def ask(_: int) -> tuple[int, str]:
        barrier.wait()
        try:
            answer = client_of(world.member).post(sessions_of(world), new_session(world), format="json")
            return answer.status_code, answer.json().get("id", "")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(6)))
    assert sorted(status for status, _ in answers) == [200] * 5 + [201]
    assert len({found for _, found in answers}) == 1
