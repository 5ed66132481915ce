"""The ``stillness`` field of a session's status: why nothing is happening."""

from __future__ import annotations

from rest_framework.test import APIClient

from executors_app.models import ExecutorRunning
from sessions_app.models import TaskSession
from tests.api.world import World
from tests.attention.raising import raised


def test_status_says_why_nothing_is_happening(world: World, api: APIClient) -> None:
    world.session.permissions.all().delete()
    assert api.get(world.url("status/")).json()["stillness"]["reason"] == "no_supervisor"  # its start is ordered
    world.session.intents.all().delete()
    ExecutorRunning.objects.update(status="stopped", status_reason="", resume_token="t")
    TaskSession.objects.update(state="WAITING_FOR_INPUT")
    api.patch(world.url(), {"policy": "manual"}, format="json")
    said = api.get(world.url("status/")).json()["stillness"]
    assert (said["reason"], "this session’s own choice" in said["next_step"]) == ("policy", True)
    raised(world.session, "owner_left")
    assert api.get(world.url("status/")).json()["stillness"]["reason"] == "owner_left"
