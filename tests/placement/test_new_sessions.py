"""A session for which nobody has chosen an executor belongs to a pool."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.models import Executor
from tests.api.world import World, client_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def pooled(world: World) -> World:
    Executor.objects.filter(id=world.executor.id).update(pool="build", max_live=2)
    world.executor.refresh_from_db()
    return world


def create(world: World, **values: Any) -> Any:
    task = world.session.task
    body = {"agent_profile": str(world.profile.id), "prompt": "", **values}
    return client_of(world.member).post(f"/api/v1/tasks/{task.id}/sessions/", body, format="json")


@pytest.mark.parametrize(("values", "pool"), [({}, "build"), ({"pool": "build"}, "build"), ({"executor": "here"}, "")])
def test_api_leaves_the_choice_to_the_pool_unless_an_executor_is_named(
    pooled: World, values: dict[str, str], pool: str
) -> None:
    if "executor" in values:
        values = {"executor": str(pooled.executor.id)}
    answer = create(pooled, **values)
    assert (answer.status_code, answer.json()["executor_pool"]) == (201, pool)
    assert answer.json()["executor"] == str(pooled.executor.id)


def test_api_names_an_unknown_pool_and_two_choices(pooled: World) -> None:
    assert list(create(pooled, pool="moon").json()["details"]) == ["pool"]
    assert list(create(pooled, pool="build", executor=str(pooled.executor.id)).json()["details"]) == ["pool"]


def test_repeated_request_returns_the_session_of_the_pool(pooled: World) -> None:
    first, second = (create(pooled, idempotency_key="once") for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
